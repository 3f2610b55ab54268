package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// page is a metrics page whose gauges of load change from answer to answer, written without copying the rest.
type page struct {
	lines    []string
	mutex    sync.Mutex
	versions map[string][]segment
	turn     atomic.Int64
}

// segment is a fixed piece of an answer and the gauge that follows it ("" for none).
type segment struct {
	text  []byte
	gauge string
}

// valueWidth is fixed, so that content-length is.
const valueWidth = 10

var gauges = map[string]bool{
	"vllm:num_requests_running": true,
	"vllm:num_requests_waiting": true,
	"vllm:kv_cache_usage_perc":  true,
}

func newPage(text []byte) *page {
	lines := strings.SplitAfter(string(text), "\n")
	return &page{lines: lines, versions: map[string][]segment{}}
}

// version cuts the page, or the samples that the query names, into segments; once per query.
func (p *page) version(query string) []segment {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if known, ok := p.versions[query]; ok {
		return known
	}
	wanted := map[string]bool{}
	if values, err := url.ParseQuery(query); err == nil {
		for _, name := range values["name[]"] {
			wanted[name] = true
		}
	}
	var segments []segment
	var text bytes.Buffer
	length := 0
	for _, line := range p.lines {
		name, ok := sampleName(line)
		if len(wanted) > 0 && !wanted[name] {
			continue
		}
		if ok && gauges[name] {
			cut := strings.LastIndexByte(line, ' ') + 1
			text.WriteString(line[:cut])
			length += cut + valueWidth + 1
			segments = append(segments, segment{bytes.Clone(text.Bytes()), name})
			text.Reset()
			text.WriteByte('\n')
			continue
		}
		length += len(line)
		text.WriteString(line)
	}
	segments = append(segments, segment{bytes.Clone(text.Bytes()), ""})
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=1.0.0; "+
		"charset=utf-8\r\ncontent-length: %d\r\n\r\n", length)
	segments[0].text = append([]byte(head), segments[0].text...)
	p.versions[query] = segments
	return segments
}

// sampleName tells the name of a sample, or of the family that a comment speaks of and false.
func sampleName(line string) (string, bool) {
	if strings.HasPrefix(line, "# ") {
		fields := strings.SplitN(line, " ", 4)
		if len(fields) < 3 {
			return "", false
		}
		return fields[2], false
	}
	return line[:max(strings.IndexAny(line, "{ "), 0)], true
}

func (p *page) write(connection net.Conn, query string, running float64) (int64, error) {
	segments := p.version(query)
	turn := float64(p.turn.Add(1) % 97)
	pieces := make(net.Buffers, 0, 2*len(segments))
	for _, one := range segments {
		pieces = append(pieces, one.text)
		switch one.gauge {
		case "vllm:num_requests_running":
			pieces = append(pieces, number(running))
		case "vllm:num_requests_waiting":
			pieces = append(pieces, number(0))
		case "vllm:kv_cache_usage_perc":
			pieces = append(pieces, number(min(0.9, 0.2+running/200+turn/1000)))
		}
	}
	return pieces.WriteTo(io.Writer(connection))
}

func number(value float64) []byte {
	text := strconv.FormatFloat(value, 'f', valueWidth, 64)
	return []byte(text[:valueWidth])
}
