// Command tools is both ends of the cost bench: `tools serve` plays the model servers, `tools load` the clients, of Envoy
// and, to measure a picker without one, of the picker itself.
//
// Each announces itself with one JSON line, {"port": N}, and is steered over HTTP on that port of 127.0.0.1.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime/debug"
)

func main() {
	// Both share a core with Envoy: memory is cheaper there than collections.
	debug.SetGCPercent(400)
	if len(os.Args) < 2 {
		fail("usage: tools serve|load …")
	}
	switch os.Args[1] {
	case "serve":
		serve(os.Args[2:])
	case "load":
		control(loadHandlers())
	default:
		fail("usage: tools serve|load …")
	}
}

func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", arguments...)
	os.Exit(1)
}

// control announces the port for orders and serves them until the process is killed.
func control(mux *http.ServeMux) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail("control port: %v", err)
	}
	fmt.Printf("{\"port\": %d}\n", listener.Addr().(*net.TCPAddr).Port)
	fail("control: %v", http.Serve(listener, mux))
}

// order answers a POST whose body is a T by what handle returns, as JSON.
func order[T any, R any](handle func(T) (R, error)) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		var given T
		if err := json.NewDecoder(request.Body).Decode(&given); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := handle(given)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		writer.Header().Set("content-type", "application/json")
		_ = json.NewEncoder(writer).Encode(result)
	}
}
