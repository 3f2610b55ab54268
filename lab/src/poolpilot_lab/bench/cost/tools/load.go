package main

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// spec of one run. Closed loop: Concurrency clients, each sends when its last answer is complete. Open loop (Rate > 0):
// requests per second arrive as a Poisson process, however long answers take.
type spec struct {
	Target      string  `json:"target"`
	Concurrency int     `json:"concurrency"`
	Rate        float64 `json:"rate"`
	// The run ends when either is reached; 0 is no limit.
	Seconds  float64 `json:"seconds"`
	Requests int64   `json:"requests"`
	// StaggerMs is the time over which the clients of a closed loop start.
	StaggerMs float64 `json:"stagger_ms"`
	Prompt    prompt  `json:"prompt"`
	Seed      int64   `json:"seed"`
	// LimitS bounds the whole run: what is open then counts as an error.
	LimitS float64 `json:"limit_s"`
}

// result of one run. Latencies in ms: in the open loop from the time at which a request was due, so that a client that
// comes late hides nothing.
type result struct {
	Count   int64            `json:"count"`
	Errors  int64            `json:"errors"`
	Reasons map[string]int64 `json:"reasons"`
	Seconds float64          `json:"seconds"`
	Chunks  int64            `json:"chunks"`
	Latency quantiles        `json:"latency_ms"`
	First   quantiles        `json:"first_byte_ms"`
	LateP99 float64          `json:"late_p99_ms"`
	Opened  int64            `json:"connections"`
	MeanMs  float64          `json:"mean_ms"`
}

type quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

func loadHandlers() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", order(run))
	mux.HandleFunc("POST /probe", order(probe))
	return mux
}

func run(given spec) (result, error) {
	if given.Seconds <= 0 && given.Requests <= 0 {
		return result{}, fmt.Errorf("neither seconds nor requests bound the run")
	}
	if given.Concurrency < 1 && given.Rate <= 0 {
		return result{}, fmt.Errorf("neither concurrency nor rate is given")
	}
	limit := given.LimitS
	if limit <= 0 {
		limit = 600
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(limit*float64(time.Second)))
	defer cancel()
	notes := &notebook{reasons: map[string]int64{}}
	// Made once, before anybody waits for it.
	text()
	began := time.Now()
	if given.Rate > 0 {
		openLoop(ctx, given, notes, began)
	} else {
		closedLoop(ctx, given, notes, began)
	}
	return notes.result(time.Since(began)), nil
}

func closedLoop(ctx context.Context, given spec, notes *notebook, began time.Time) {
	var taken atomic.Int64
	var clients sync.WaitGroup
	for index := 0; index < given.Concurrency; index++ {
		clients.Add(1)
		go func(index int) {
			defer clients.Done()
			random := rand.New(rand.NewSource(given.Seed*1_000_003 + int64(index)))
			one := &client{target: given.Target, writer: newWriter(given.Prompt, random)}
			defer one.close()
			page := &notePage{}
			defer notes.add(page, one)
			pause := given.StaggerMs * float64(index) / float64(given.Concurrency)
			time.Sleep(time.Duration(pause * float64(time.Millisecond)))
			for ctx.Err() == nil {
				if given.Seconds > 0 && time.Since(began).Seconds() >= given.Seconds {
					return
				}
				if given.Requests > 0 && taken.Add(1) > given.Requests {
					return
				}
				now := time.Now()
				page.note(one.send(ctx, now), now, now)
			}
		}(index)
	}
	clients.Wait()
}

func openLoop(ctx context.Context, given spec, notes *notebook, began time.Time) {
	random := rand.New(rand.NewSource(given.Seed*1_000_003 + 7))
	idle := make(chan *client, 1<<16)
	var open sync.WaitGroup
	var all []*client
	page := &notePage{}
	var mutex sync.Mutex
	due := began
	for sent := int64(0); given.Requests <= 0 || sent < given.Requests; sent++ {
		due = due.Add(time.Duration(random.ExpFloat64() / given.Rate * float64(time.Second)))
		if given.Seconds > 0 && due.Sub(began).Seconds() >= given.Seconds {
			break
		}
		if pause := time.Until(due); pause > 0 {
			time.Sleep(pause)
		}
		if ctx.Err() != nil {
			break
		}
		var one *client
		select {
		case one = <-idle:
		default:
			one = &client{target: given.Target, writer: newWriter(given.Prompt, rand.New(rand.NewSource(random.Int63())))}
			all = append(all, one)
		}
		open.Add(1)
		go func(due time.Time) {
			defer open.Done()
			sent := time.Now()
			outcome := one.send(ctx, due)
			mutex.Lock()
			page.note(outcome, due, sent)
			mutex.Unlock()
			idle <- one
		}(due)
	}
	open.Wait()
	for _, one := range all {
		one.close()
		page.opened += one.opened
	}
	notes.add(page, &client{})
}

// notePage is what one client saw.
type notePage struct {
	latency, first, late []float64
	reasons              map[string]int64
	chunks, opened       int64
}

func (p *notePage) note(outcome outcome, due, sent time.Time) {
	if outcome.err != nil {
		if p.reasons == nil {
			p.reasons = map[string]int64{}
		}
		p.reasons[reason(outcome.err)]++
		return
	}
	p.chunks += int64(outcome.chunks)
	p.latency = append(p.latency, ms(outcome.done.Sub(due)))
	p.first = append(p.first, ms(outcome.first.Sub(due)))
	p.late = append(p.late, ms(sent.Sub(due)))
}

type notebook struct {
	mutex                sync.Mutex
	latency, first, late []float64
	reasons              map[string]int64
	chunks, opened       int64
}

func (n *notebook) add(page *notePage, one *client) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.latency = append(n.latency, page.latency...)
	n.first = append(n.first, page.first...)
	n.late = append(n.late, page.late...)
	n.chunks += page.chunks
	n.opened += page.opened + one.opened
	for text, count := range page.reasons {
		n.reasons[text] += count
	}
}

func (n *notebook) result(took time.Duration) result {
	var errors int64
	for _, count := range n.reasons {
		errors += count
	}
	mean := 0.0
	for _, one := range n.latency {
		mean += one / float64(len(n.latency))
	}
	return result{
		Count: int64(len(n.latency)), Errors: errors, Reasons: n.reasons, Seconds: took.Seconds(), Chunks: n.chunks,
		Latency: measure(n.latency), First: measure(n.first), LateP99: measure(n.late).P99, Opened: n.opened, MeanMs: mean,
	}
}

func measure(values []float64) quantiles {
	if len(values) == 0 {
		return quantiles{}
	}
	sort.Float64s(values)
	at := func(share float64) float64 { return values[min(len(values)-1, int(share*float64(len(values))))] }
	return quantiles{at(0.5), at(0.9), at(0.99), at(0.999), values[len(values)-1]}
}

func ms(span time.Duration) float64 { return float64(span) / float64(time.Millisecond) }
