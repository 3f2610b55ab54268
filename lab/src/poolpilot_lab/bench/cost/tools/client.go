package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// client is one HTTP/1.1 connection, kept between requests and opened anew after an error.
type client struct {
	target     string
	writer     *writer
	connection net.Conn
	reader     *bufio.Reader
	opened     int64
}

type outcome struct {
	first, done time.Time
	chunks      int
	err         error
}

var (
	errCut     = errors.New("streamed answer without its end")
	errWhole   = errors.New("answer in one piece where a stream was asked for")
	errHead    = errors.New("answer is no HTTP/1.1")
	eventStart = []byte("data: ")
	lastEvent  = []byte("data: [DONE]\n\n")
)

// reason shortens an error to what can be counted.
func reason(err error) string {
	var operation *net.OpError
	if errors.As(err, &operation) {
		return operation.Op + ": " + operation.Err.Error()
	}
	return err.Error()
}

func (c *client) close() {
	if c.connection != nil {
		_ = c.connection.Close()
		c.connection = nil
	}
}

// send sends the next request of the writer and reads the whole answer; anything but a complete 200 is an error.
func (c *client) send(ctx context.Context, due time.Time) outcome {
	result, keep := c.exchange(ctx)
	result.done = time.Now()
	if result.first.IsZero() {
		result.first = result.done
	}
	if result.err != nil || !keep {
		c.close()
	}
	return result
}

func (c *client) exchange(ctx context.Context) (outcome, bool) {
	var result outcome
	if c.connection == nil {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.target)
		if err != nil {
			result.err = err
			return result, false
		}
		c.connection = connection
		c.reader = bufio.NewReaderSize(connection, 16<<10)
		c.opened++
		if deadline, ok := ctx.Deadline(); ok {
			_ = connection.SetDeadline(deadline)
		}
	} else if deadline, ok := ctx.Deadline(); ok {
		_ = c.connection.SetDeadline(deadline)
	}
	pieces := c.writer.next(c.target)
	if _, result.err = pieces.WriteTo(c.connection); result.err != nil {
		return result, false
	}
	return c.answer()
}

func (c *client) answer() (outcome, bool) {
	var result outcome
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		result.err = err
		return result, false
	}
	result.first = time.Now()
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) || len(line) < 12 {
		result.err = errHead
		return result, false
	}
	status := string(line[9:12])
	length, chunked, keep := int64(0), false, true
	for {
		if line, err = c.reader.ReadSlice('\n'); err != nil {
			result.err = err
			return result, false
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch strings.ToLower(string(name)) {
		case "content-length":
			length, err = strconv.ParseInt(string(value), 10, 64)
		case "transfer-encoding":
			chunked = true
		case "connection":
			keep = !bytes.EqualFold(value, []byte("close"))
		}
		if err != nil {
			result.err = errHead
			return result, false
		}
	}
	if status != "200" {
		text := make([]byte, min(length, 200))
		_, _ = io.ReadFull(c.reader, text)
		result.err = fmt.Errorf("status %s: %s", status, text)
		return result, false
	}
	if !chunked {
		_, result.err = c.reader.Discard(int(length))
	} else {
		result.chunks, result.err = c.chunks()
	}
	if result.err == nil && c.writer.prompt.Stream && result.chunks == 0 {
		result.err = errWhole
	}
	return result, keep
}

// chunks reads a chunked answer and counts its events; one that does not end with [DONE] was cut.
func (c *client) chunks() (int, error) {
	events := 0
	var tail []byte
	for {
		line, err := c.reader.ReadSlice('\n')
		if err != nil {
			return events, err
		}
		size, err := strconv.ParseInt(string(bytes.TrimRight(line, "\r\n")), 16, 32)
		if err != nil {
			return events, errHead
		}
		for left := int(size); left > 0; {
			part, err := c.reader.Peek(min(left, 8<<10))
			if err != nil {
				return events, err
			}
			events += bytes.Count(part, eventStart)
			seam := append(append(make([]byte, 0, 10), tail[max(len(tail)-5, 0):]...), part[:min(len(part), 5)]...)
			events += bytes.Count(seam, eventStart)
			tail = append(tail, part[max(len(part)-len(lastEvent), 0):]...)
			tail = tail[max(len(tail)-len(lastEvent), 0):]
			if _, err = c.reader.Discard(len(part)); err != nil {
				return events, err
			}
			left -= len(part)
		}
		if _, err = c.reader.Discard(2); err != nil {
			return events, err
		}
		if size == 0 {
			if events > 0 && !bytes.Equal(tail, lastEvent) {
				return events, errCut
			}
			return events, nil
		}
	}
}
