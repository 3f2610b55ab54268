package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// shape of a streamed answer.
type shape struct {
	Chunks     int     `json:"chunks"`
	IntervalMs float64 `json:"interval_ms"`
}

// counts since the start, over all servers.
type counts struct {
	Pages    int64 `json:"pages"`
	Bytes    int64 `json:"page_bytes"`
	Models   int64 `json:"models"`
	Requests int64 `json:"requests"`
}

type fleet struct {
	page     *page
	models   []byte
	selects  bool
	shape    atomic.Pointer[shape]
	pages    atomic.Int64
	bytes    atomic.Int64
	asked    atomic.Int64
	requests atomic.Int64
}

// server is one model server: an address with requests in flight.
type server struct {
	fleet    *fleet
	inFlight atomic.Int64
}

func serve(arguments []string) {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	listen := flags.String("listen", "", "comma list of IP:PORT")
	pageFile := flags.String("page", "", "the metrics page to serve, gauges of load replaced")
	modelsFile := flags.String("models", "", "the answer to /v1/models")
	selects := flags.Bool("select", true, "answer /metrics?name[]=… with these samples only")
	_ = flags.Parse(arguments)
	text, err := os.ReadFile(*pageFile)
	if err != nil {
		fail("page: %v", err)
	}
	models, err := os.ReadFile(*modelsFile)
	if err != nil {
		fail("models: %v", err)
	}
	all := &fleet{page: newPage(text), models: answer("application/json", models), selects: *selects}
	all.shape.Store(&shape{Chunks: 200, IntervalMs: 20})
	for _, address := range strings.Split(*listen, ",") {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			fail("%v", err)
		}
		one := &server{fleet: all}
		go one.accept(listener)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /shape", order(func(given shape) (shape, error) {
		all.shape.Store(&given)
		return given, nil
	}))
	mux.HandleFunc("POST /counts", order(func(struct{}) (counts, error) {
		return counts{all.pages.Load(), all.bytes.Load(), all.asked.Load(), all.requests.Load()}, nil
	}))
	control(mux)
}

func (s *server) accept(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			fail("accept: %v", err)
		}
		go s.talk(connection)
	}
}

// talk answers one request after the other. What is no HTTP/1.1 ends the connection.
func (s *server) talk(connection net.Conn) {
	defer connection.Close()
	reader := bufio.NewReaderSize(connection, 32<<10)
	// Where a picker has written the body anew, "stream" may stand behind the messages.
	head := make([]byte, 16<<10)
	for {
		request, err := readHead(reader)
		if err != nil {
			return
		}
		if request.path == "/v1/chat/completions" || request.path == "/v1/completions" {
			s.inFlight.Add(1)
			s.fleet.requests.Add(1)
			err = s.complete(connection, reader, request, head)
			s.inFlight.Add(-1)
		} else if _, err = request.skipBody(reader, nil); err == nil {
			err = s.tell(connection, request)
		}
		if err != nil || request.close {
			return
		}
	}
}

func (s *server) tell(connection net.Conn, request requestHead) error {
	switch strings.TrimSuffix(request.path, "/") {
	case "/metrics":
		query := ""
		if s.fleet.selects {
			query = request.query
		}
		written, err := s.fleet.page.write(connection, query, float64(s.inFlight.Load()))
		s.fleet.pages.Add(1)
		s.fleet.bytes.Add(written)
		return err
	case "/v1/models":
		s.fleet.asked.Add(1)
		_, err := connection.Write(s.fleet.models)
		return err
	case "/health":
		_, err := connection.Write(healthy)
		return err
	}
	_, err := connection.Write(notFound)
	return err
}

var (
	healthy  = answer("text/plain", nil)
	notFound = []byte("HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")
	streams  = []byte(`"stream":true`)
	whole    = answer("application/json", []byte(`{"id":"chatcmpl-`+strings.Repeat("0", 32)+
		`","object":"chat.completion","created":1750000000,"model":"bench","choices":[{"index":0,"message":{"role":`+
		`"assistant","content":"`+strings.Repeat("word ", 40)+`","tool_calls":[]},"logprobs":null,"finish_reason":`+
		`"length"}],"usage":{"prompt_tokens":200,"total_tokens":240,"completion_tokens":40,"prompt_tokens_details":null}}`))
	opening = []byte("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n")
	event   = chunk(`data: {"id":"chatcmpl-` + strings.Repeat("0", 32) + `","object":"chat.completion.chunk","created":` +
		`1750000000,"model":"bench","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,` +
		`"finish_reason":null,"token_ids":null}]}` + "\n\n")
	closing = append(chunk("data: [DONE]\n\n"), "0\r\n\r\n"...)
)

func answer(kind string, body []byte) []byte {
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n", kind, len(body))
	return append([]byte(head), body...)
}

func chunk(text string) []byte {
	return []byte(fmt.Sprintf("%x\r\n%s\r\n", len(text), text))
}

// complete answers a chat: at once, or in chunks that are due at fixed times after the end of the request.
func (s *server) complete(connection net.Conn, reader *bufio.Reader, request requestHead, head []byte) error {
	length, err := request.skipBody(reader, head)
	if err != nil {
		return err
	}
	if !bytes.Contains(head[:length], streams) {
		_, err = connection.Write(whole)
		return err
	}
	if _, err = connection.Write(opening); err != nil {
		return err
	}
	form := s.fleet.shape.Load()
	began := time.Now()
	for index := 0; index < form.Chunks; index++ {
		due := began.Add(time.Duration(float64(index+1) * form.IntervalMs * float64(time.Millisecond)))
		if pause := time.Until(due); pause > 0 {
			time.Sleep(pause)
		}
		if _, err = connection.Write(event); err != nil {
			return err
		}
	}
	_, err = connection.Write(closing)
	return err
}

type requestHead struct {
	path, query string
	length      int64
	chunked     bool
	close       bool
}

func readHead(reader *bufio.Reader) (requestHead, error) {
	var head requestHead
	line, err := reader.ReadSlice('\n')
	if err != nil {
		return head, err
	}
	parts := bytes.SplitN(line, []byte(" "), 3)
	if len(parts) != 3 {
		return head, io.ErrUnexpectedEOF
	}
	head.path, head.query, _ = strings.Cut(string(parts[1]), "?")
	for {
		line, err = reader.ReadSlice('\n')
		if err != nil {
			return head, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return head, nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if head.length, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return head, err
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			head.chunked = true
		case bytes.EqualFold(name, []byte("connection")):
			head.close = bytes.EqualFold(value, []byte("close"))
		}
	}
}

// skipBody reads the body to its end and keeps what fits into kept; it returns how much that is.
func (r requestHead) skipBody(reader *bufio.Reader, kept []byte) (int, error) {
	if !r.chunked {
		return skip(reader, int(r.length), kept, 0)
	}
	filled := 0
	for {
		line, err := reader.ReadSlice('\n')
		if err != nil {
			return filled, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return filled, err
		}
		if filled, err = skip(reader, int(size), kept, filled); err != nil {
			return filled, err
		}
		if _, err = reader.Discard(2); err != nil || size == 0 {
			return filled, err
		}
	}
}

func skip(reader *bufio.Reader, length int, kept []byte, filled int) (int, error) {
	wanted := min(length, len(kept)-filled)
	if wanted > 0 {
		if _, err := io.ReadFull(reader, kept[filled:filled+wanted]); err != nil {
			return filled, err
		}
		filled += wanted
		length -= wanted
	}
	_, err := reader.Discard(length)
	return filled, err
}
