package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"net"
	"sync"
	"time"
)

// probeSpec is a run of exchanges on one connection to a picker, as Envoy would have them. Messages are protobuf, as
// JSON base64. Each exchange sends Head and one of Bodies, waits for the reply, then sends Tail and its end.
type probeSpec struct {
	Target   string   `json:"target"`
	Rate     float64  `json:"rate"`
	Requests int      `json:"requests"`
	Seed     int64    `json:"seed"`
	Head     []byte   `json:"head"`
	Bodies   [][]byte `json:"bodies"`
	Tail     [][]byte `json:"tail"`
	LimitS   float64  `json:"limit_s"`
}

// probeResult has times in ms. Handed: from before the write of a request's last byte until the picker has handed the
// reply's first to its socket, by the kernel's stamp. Reply: from that write until the reply is read, which has our own
// wake-up in it. Unstamped counts the replies for which only the latter is known; it stands for the former, too.
type probeResult struct {
	Count     int64     `json:"count"`
	Errors    int64     `json:"errors"`
	Unstamped int64     `json:"unstamped"`
	Handed    quantiles `json:"handed_ms"`
	Reply     quantiles `json:"reply_ms"`
	Late      quantiles `json:"late_ms"`
}

const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
	frameWindow   = 8

	flagAck        = 1
	flagEndStream  = 1
	flagEndHeaders = 4
)

// prober is the one connection: its frames are written under the mutex, the reader tells exchanges of their replies.
type prober struct {
	connection *net.TCPConn
	reader     *stampedReader
	mutex      sync.Mutex
	room       *sync.Cond
	window     int64
	waiting    map[uint32]*exchange
	failed     error
}

type exchange struct {
	begun, sent, handed, answered time.Time
	replied, ended                chan struct{}
	reset                         bool
}

func probe(given probeSpec) (probeResult, error) {
	if given.Rate <= 0 || given.Requests < 1 || len(given.Bodies) == 0 {
		return probeResult{}, fmt.Errorf("a probe needs a rate, requests and bodies")
	}
	dialled, err := net.Dial("tcp", given.Target)
	if err != nil {
		return probeResult{}, err
	}
	defer dialled.Close()
	connection, found := dialled.(*net.TCPConn)
	if !found {
		return probeResult{}, fmt.Errorf("%s is not reached by TCP", given.Target)
	}
	reader, err := newStampedReader(connection)
	if err != nil {
		return probeResult{}, err
	}
	_ = connection.SetDeadline(time.Now().Add(time.Duration(max(given.LimitS, 1) * float64(time.Second))))
	one := &prober{connection: connection, reader: reader, window: 65_535, waiting: map[uint32]*exchange{}}
	one.room = sync.NewCond(&one.mutex)
	if err = one.greet(); err != nil {
		return probeResult{}, err
	}
	go one.read()
	return one.play(given)
}

func (p *prober) play(given probeSpec) (probeResult, error) {
	random := rand.New(rand.NewSource(given.Seed))
	opening := headers(given.Target)
	var handed, replies, late []float64
	var errors, unstamped int64
	var mutex sync.Mutex
	var open sync.WaitGroup
	due := time.Now()
	for index := 0; index < given.Requests; index++ {
		due = due.Add(time.Duration(random.ExpFloat64() / given.Rate * float64(time.Second)))
		if pause := time.Until(due); pause > 0 {
			time.Sleep(pause)
		}
		stream := uint32(2*index + 1)
		body := given.Bodies[random.Intn(len(given.Bodies))]
		lag := ms(time.Since(due))
		one, err := p.open(stream, opening, given.Head, body)
		if err != nil {
			return probeResult{}, err
		}
		open.Add(1)
		go func() {
			defer open.Done()
			<-one.replied
			failed := one.reset
			if !failed {
				_ = p.finish(stream, given.Tail)
			}
			<-one.ended
			mutex.Lock()
			defer mutex.Unlock()
			if failed {
				errors++
				return
			}
			reply := one.answered.Sub(one.sent)
			inside, stamped := one.inside()
			if !stamped {
				unstamped++
				inside = reply
			}
			handed = append(handed, ms(inside))
			replies = append(replies, ms(reply))
			late = append(late, lag)
		}()
	}
	open.Wait()
	count := int64(len(replies))
	return probeResult{count, errors, unstamped, measure(handed), measure(replies), measure(late)}, nil
}

// inside is what the picker took by the kernel's stamp; false where there is none, or the clock was set meanwhile.
func (e *exchange) inside() (time.Duration, bool) {
	if e.handed.IsZero() {
		return 0, false
	}
	taken := e.handed.Sub(e.begun.Round(0))
	return taken, 0 < taken && taken <= e.answered.Sub(e.begun)
}

func (p *prober) greet() error {
	greeting := []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	// INITIAL_WINDOW_SIZE (4): answers are never held back.
	settings := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(nil, 4), 1<<30)
	greeting = append(greeting, frame(frameSettings, 0, 0, settings)...)
	greeting = append(greeting, frame(frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, 1<<30))...)
	_, err := p.connection.Write(greeting)
	return err
}

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	made := make([]byte, 0, 9+len(payload))
	made = append(made, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	made = binary.BigEndian.AppendUint32(made, stream)
	return append(made, payload...)
}

// headers is a block of literals without indexing and without Huffman codes: valid for every decoder, in every state.
func headers(authority string) []byte {
	var block []byte
	for _, field := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/envoy.service.ext_proc.v3.ExternalProcessor/Process"},
		{":authority", authority},
		{"te", "trailers"},
		{"content-type", "application/grpc"},
	} {
		block = append(block, 0, byte(len(field[0])))
		block = append(block, field[0]...)
		block = append(block, byte(len(field[1])))
		block = append(block, field[1]...)
	}
	return block
}

func message(stream uint32, payload []byte) []byte {
	data := append([]byte{0}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return frame(frameData, 0, stream, append(data, payload...))
}

func (p *prober) open(stream uint32, opening, head, body []byte) (*exchange, error) {
	one := &exchange{replied: make(chan struct{}), ended: make(chan struct{})}
	bytes := frame(frameHeaders, flagEndHeaders, stream, opening)
	first, last := message(stream, head), message(stream, body)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.take(int64(len(first) + len(last) - 18))
	if p.failed != nil {
		return nil, p.failed
	}
	p.waiting[stream] = one
	bytes = append(append(bytes, first...), last...)
	one.begun = time.Now()
	if _, err := p.connection.Write(bytes); err != nil {
		return nil, err
	}
	one.sent = time.Now()
	return one, nil
}

func (p *prober) finish(stream uint32, tail [][]byte) error {
	var bytes []byte
	data := int64(0)
	for _, payload := range tail {
		part := message(stream, payload)
		bytes = append(bytes, part...)
		data += int64(len(part) - 9)
	}
	bytes = append(bytes, frame(frameData, flagEndStream, stream, nil)...)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.take(data)
	_, err := p.connection.Write(bytes)
	return err
}

// take waits for the connection's window; streams are far smaller than theirs.
func (p *prober) take(bytes int64) {
	for p.window < bytes && p.failed == nil {
		p.room.Wait()
	}
	p.window -= bytes
}

// read handles what the picker sends until the connection ends; then nobody waits any longer.
func (p *prober) read() {
	reader := bufio.NewReaderSize(p.reader, 64<<10)
	head := make([]byte, 9)
	payload := make([]byte, 1<<24)
	for {
		if _, err := io.ReadFull(reader, head); err != nil {
			p.fail(err)
			return
		}
		length := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
		part := payload[:length]
		if _, err := io.ReadFull(reader, part); err != nil {
			p.fail(err)
			return
		}
		now := time.Now()
		p.handle(head[3], head[4], binary.BigEndian.Uint32(head[5:])&0x7fffffff, part, now)
	}
}

func (p *prober) handle(kind, flags byte, stream uint32, payload []byte, now time.Time) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	one := p.waiting[stream]
	switch {
	case kind == frameSettings && flags&flagAck == 0:
		_, _ = p.connection.Write(frame(frameSettings, flagAck, 0, nil))
	case kind == framePing && flags&flagAck == 0:
		_, _ = p.connection.Write(frame(framePing, flagAck, 0, payload))
	case kind == frameWindow && stream == 0:
		p.window += int64(binary.BigEndian.Uint32(payload) & 0x7fffffff)
		p.room.Broadcast()
	case one == nil:
	case kind == frameData && len(payload) > 0 && one.answered.IsZero():
		one.answered, one.handed = now, p.reader.stamp
		close(one.replied)
	}
	if one != nil && (kind == frameReset || (kind == frameData || kind == frameHeaders) && flags&flagEndStream != 0) {
		p.end(stream, one)
	}
}

func (p *prober) end(stream uint32, one *exchange) {
	delete(p.waiting, stream)
	if one.answered.IsZero() {
		one.reset = true
		close(one.replied)
	}
	close(one.ended)
}

func (p *prober) fail(err error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.failed = err
	for stream, one := range p.waiting {
		p.end(stream, one)
	}
	p.room.Broadcast()
}
