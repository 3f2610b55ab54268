// Command client is a gRPC client in Go for the picker's data port: it runs ext_proc streams with messages from a file.
//
//	client ADDRESS FILE STREAMS CONCURRENCY CANCEL
//
// FILE holds the messages of one stream, each behind its length (4 bytes, big endian). Each stream sends a message and
// reads one answer, again and again; then it closes its side and expects the status OK. Every CANCEL-th stream is
// cancelled after its first answer instead (0: none). Prints how many ended how.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// raw passes bytes through as they are.
type raw struct{}

func (raw) Name() string                    { return "proto" }
func (raw) Marshal(v any) ([]byte, error)   { return *v.(*[]byte), nil }
func (raw) Unmarshal(b []byte, v any) error { *v.(*[]byte) = append([]byte(nil), b...); return nil }

func messages(file string) [][]byte {
	data, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	var all [][]byte
	for len(data) >= 4 {
		size := binary.BigEndian.Uint32(data)
		all = append(all, data[4:4+size])
		data = data[4+size:]
	}
	return all
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		log.Fatal(err)
	}
	return n
}

func stream(connection *grpc.ClientConn, all [][]byte, cancelled bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := connection.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
		"/envoy.service.ext_proc.v3.ExternalProcessor/Process", grpc.ForceCodec(raw{}))
	if err != nil {
		return err
	}
	var answer []byte
	for _, message := range all {
		if err := s.SendMsg(&message); err != nil {
			return err
		}
		if err := s.RecvMsg(&answer); err != nil {
			return err
		}
		if cancelled {
			return nil
		}
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	if err := s.RecvMsg(&answer); err != io.EOF {
		return fmt.Errorf("after the last answer: %v", err)
	}
	return nil
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	health, err := grpc_health_v1.NewHealthClient(connection).Check(context.Background(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		log.Fatal(err)
	}
	all := messages(os.Args[2])
	streams, concurrency, cancel := number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	numbers := make(chan int)
	outcomes := map[string]int{}
	var lock sync.Mutex
	var workers sync.WaitGroup
	for range concurrency {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for n := range numbers {
				cancelled := cancel > 0 && n%cancel == 0
				outcome := "ok"
				if err := stream(connection, all, cancelled); err != nil {
					outcome = err.Error()
				} else if cancelled {
					outcome = "cancelled"
				}
				lock.Lock()
				outcomes[outcome]++
				lock.Unlock()
			}
		}()
	}
	for n := 1; n <= streams; n++ {
		numbers <- n
	}
	close(numbers)
	workers.Wait()
	fmt.Println("health", health.GetStatus())
	for outcome, count := range outcomes {
		fmt.Println(count, outcome)
	}
}
