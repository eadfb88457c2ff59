package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/shardctl/shardctl/pkg/coordinator"
)

// supervisor is whoever has started a node and wants to hear of it, as systemd
// does (sd_notify(3)).
type supervisor struct {
	socket string
	send   func(state string) error // by the socket
	// watchdog is how often it wants to hear from the node; 0 for never.
	watchdog time.Duration
	// poll is how often the node is asked whether it is ready.
	poll time.Duration
}

// supervisor is the one that the environment names; nil for none.
func (a *app) supervisor() *supervisor {
	socket := a.getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	s := &supervisor{socket: socket, poll: 100 * time.Millisecond}
	s.send = s.tell
	usec, err := strconv.ParseInt(a.getenv("WATCHDOG_USEC"), 10, 64)
	pid := a.getenv("WATCHDOG_PID")
	if err == nil && usec > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		s.watchdog = time.Duration(usec) * time.Microsecond / 2
	}
	return s
}

// tell sends one state.
func (s *supervisor) tell(state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}

// follow tells that the node is ready, that it lives as long as status answers,
// which the node's main loop does, and once stopping has ended, that it stops. It
// returns when the context ends. It does nothing without a supervisor.
func (s *supervisor) follow(ctx, stopping context.Context, status func() coordinator.NodeStatus, failed func(error)) {
	if s == nil {
		return
	}
	say := func(state string) {
		if err := s.send(state); err != nil {
			failed(err)
		}
	}
	context.AfterFunc(stopping, func() { say("STOPPING=1") })
	ready := false
	for {
		if isReady := status().Ready; isReady && !ready {
			ready = true
			say("READY=1")
		}
		if s.watchdog > 0 {
			say("WATCHDOG=1")
		}
		next := s.watchdog
		switch {
		case !ready && s.watchdog > 0:
			next = min(s.poll, s.watchdog)
		case !ready:
			next = s.poll
		case s.watchdog == 0:
			return // there is no more to tell
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(next):
		}
	}
}
