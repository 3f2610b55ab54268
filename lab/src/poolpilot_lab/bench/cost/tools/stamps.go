package main

import (
	"encoding/binary"
	"io"
	"net"
	"syscall"
	"time"
)

// stampedReader reads a connection and remembers when, by CLOCK_REALTIME, the kernel received what was read last:
// packets of the loopback device are stamped while their sender is still in its write, so that is when the sender
// handed them to its socket. No wake-up of ours is in it.
type stampedReader struct {
	raw   syscall.RawConn
	space [64]byte
	stamp time.Time
}

func newStampedReader(connection *net.TCPConn) (*stampedReader, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return nil, err
	}
	var refused error
	err = raw.Control(func(fd uintptr) {
		refused = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	if err == nil {
		err = refused
	}
	return &stampedReader{raw: raw}, err
}

func (r *stampedReader) Read(into []byte) (int, error) {
	var count, extra int
	var failed error
	err := r.raw.Read(func(fd uintptr) bool {
		count, extra, _, _, failed = syscall.Recvmsg(int(fd), into, r.space[:], 0)
		return failed != syscall.EAGAIN && failed != syscall.EINTR
	})
	if err == nil {
		err = failed
	}
	if err == nil && count == 0 && len(into) > 0 {
		err = io.EOF
	}
	if err != nil {
		return max(count, 0), err
	}
	r.stamp = stampIn(r.space[:extra])
	return count, nil
}

// stampIn is zero where the kernel has told none.
func stampIn(control []byte) time.Time {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}
	}
	for _, one := range messages {
		if one.Header.Level == syscall.SOL_SOCKET && one.Header.Type == syscall.SCM_TIMESTAMPNS && len(one.Data) >= 16 {
			seconds := int64(binary.NativeEndian.Uint64(one.Data))
			return time.Unix(seconds, int64(binary.NativeEndian.Uint64(one.Data[8:])))
		}
	}
	return time.Time{}
}
