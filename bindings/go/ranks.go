// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

// #include <nsa/nsa.h>
// #include <stdlib.h>
import "C"

import (
	"runtime"
	"time"
	"unsafe"
)

// How a Shard divides tokens.
const (
	ShardZigzag     = C.NSA_SHARD_ZIGZAG
	ShardContiguous = C.NSA_SHARD_CONTIGUOUS
	ShardGiven      = C.NSA_SHARD_GIVEN
)

// MaxRanks is the largest number of ranks.
const MaxRanks = C.NSA_MAX_RANKS

// Piece has the fields of nsa_piece: successive tokens of one sequence on one rank.
type Piece struct {
	Rank, Sequence int32
	Begin, Length  int64
}

// ShardOptions has the fields of nsa_shard_options. Every rank passes the same.
type ShardOptions struct {
	Layout, Ranks int32
	Lengths       []int64 // tokens of each sequence
	Alignment     int64
	Given         []Piece // of ShardGiven
}

// Shard is a division of sequences among ranks. It never changes.
type Shard struct{ c *C.nsa_shard }

func (s *Shard) handle() *C.nsa_shard {
	if s == nil {
		return nil
	}
	return s.c
}

// Shard divides sequences among ranks: nsa_shard_create. Close it.
func (ctx *Context) Shard(o ShardOptions) (*Shard, error) {
	var m memory
	defer m.free()
	options := (*C.nsa_shard_options)(m.alloc(C.sizeof_nsa_shard_options))
	options.struct_size = C.sizeof_nsa_shard_options
	options.layout, options.ranks = C.int32_t(o.Layout), C.int32_t(o.Ranks)
	options.num_seqs, options.alignment = C.int32_t(len(o.Lengths)), C.int64_t(o.Alignment)
	options.lengths = (*C.int64_t)(m.alloc(C.size_t(len(o.Lengths)+1) * C.sizeof_int64_t))
	for i, length := range o.Lengths {
		unsafe.Slice(options.lengths, len(o.Lengths))[i] = C.int64_t(length)
	}
	if len(o.Given) > 0 {
		options.given = (*C.nsa_piece)(m.alloc(C.size_t(len(o.Given)) * C.sizeof_nsa_piece))
		options.given_count = C.int64_t(len(o.Given))
		for i, p := range o.Given {
			unsafe.Slice(options.given, len(o.Given))[i] = C.nsa_piece{
				rank: C.int32_t(p.Rank), sequence: C.int32_t(p.Sequence),
				begin: C.int64_t(p.Begin), length: C.int64_t(p.Length),
			}
		}
	}
	var made *C.nsa_shard
	err := call(func() C.nsa_status { return C.nsa_shard_create(ctx.c, options, &made) })
	runtime.KeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	return &Shard{made}, nil
}

// Pieces are those of a rank, in the order of its local tokens.
func (s *Shard) Pieces(rank int) ([]Piece, error) {
	var at *C.nsa_piece
	var count C.int32_t
	err := call(func() C.nsa_status { return C.nsa_shard_pieces(s.c, C.int32_t(rank), &at, &count) })
	if err != nil {
		return nil, err
	}
	pieces := make([]Piece, int(count))
	for i := range pieces {
		p := unsafe.Slice(at, int(count))[i]
		pieces[i] = Piece{int32(p.rank), int32(p.sequence), int64(p.begin), int64(p.length)}
	}
	return pieces, nil
}

// Tokens is the number of tokens of a rank, of -1 the largest: Problem.MaxTokens.
func (s *Shard) Tokens(rank int) int64 { return int64(C.nsa_shard_tokens(s.c, C.int32_t(rank))) }

// MaxPieces is the largest number of pieces of a rank: Problem.MaxPieces.
func (s *Shard) MaxPieces() int32 { return int32(C.nsa_shard_max_pieces(s.c)) }

// Close destroys the shard. No call may be using it; runs that were enqueued need it no more.
func (s *Shard) Close() {
	C.nsa_shard_destroy(s.c)
	s.c = nil
}

// Comm is one rank's end of a communicator. One goroutine at a time may use it.
type Comm struct{ c *C.nsa_comm }

func commOptions(timeout time.Duration) C.nsa_comm_options {
	return C.nsa_comm_options{struct_size: C.sizeof_nsa_comm_options, timeout_ms: milliseconds(timeout)}
}

func milliseconds(d time.Duration) C.int32_t { return C.int32_t(d.Milliseconds()) }

// Loopback makes the communicators of ranks that are goroutines, on the CPU device or on streams of one GPU:
// nsa_comm_loopback. A rank's call waits in its thread until every rank has made the same call, so each rank
// needs a goroutine of its own. A timeout of 0 is the default of 60 s. Close each.
func (ctx *Context) Loopback(size int, timeout time.Duration) ([]*Comm, error) {
	var m memory
	defer m.free()
	options := commOptions(timeout)
	made := (**C.nsa_comm)(m.alloc(C.size_t(size+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))
	err := call(func() C.nsa_status { return C.nsa_comm_loopback(ctx.c, C.int32_t(size), &options, made) })
	runtime.KeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	comms := make([]*Comm, size)
	for i, c := range unsafe.Slice(made, size) {
		comms[i] = &Comm{c}
	}
	return comms, nil
}

// NCCLID makes the id by which ranks find each other: nsa_comm_nccl_id.
func (ctx *Context) NCCLID() (id [C.NSA_NCCL_ID_BYTES]byte, err error) {
	var raw [C.NSA_NCCL_ID_BYTES]C.char
	err = call(func() C.nsa_status { return C.nsa_comm_nccl_id(ctx.c, &raw[0]) })
	runtime.KeepAlive(ctx)
	for i := range raw {
		id[i] = byte(raw[i])
	}
	return id, err
}

// NCCL makes a communicator of its own over NCCL, with the id of one rank: nsa_comm_nccl_init. It waits for all
// ranks. Close it.
func (ctx *Context) NCCL(id [C.NSA_NCCL_ID_BYTES]byte, rank, size int, timeout time.Duration) (*Comm, error) {
	var raw [C.NSA_NCCL_ID_BYTES]C.char
	for i := range id {
		raw[i] = C.char(id[i])
	}
	options := commOptions(timeout)
	var made *C.nsa_comm
	err := call(func() C.nsa_status {
		return C.nsa_comm_nccl_init(ctx.c, &raw[0], C.int32_t(rank), C.int32_t(size), &options, &made)
	})
	runtime.KeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	return &Comm{made}, nil
}

// Agree compares with the other ranks what is about to run: nsa_comm_agree. Every rank calls it, with as many
// plans. A nil shard compares the plans alone; a timeout of 0 is the communicator's.
func (c *Comm) Agree(shard *Shard, timeout time.Duration, plans ...*Plan) error {
	var m memory
	defer m.free()
	list := (**C.nsa_plan)(m.alloc(C.size_t(len(plans)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))
	for i, p := range plans {
		unsafe.Slice(list, len(plans))[i] = p.c
	}
	err := call(func() C.nsa_status {
		return C.nsa_comm_agree(c.c, list, C.size_t(len(plans)), shard.handle(), milliseconds(timeout))
	})
	runtime.KeepAlive(plans)
	runtime.KeepAlive(shard)
	return err
}

// Check says whether the communicator is well: nsa_comm_check. Any goroutine may call it.
func (c *Comm) Check() error {
	return call(func() C.nsa_status { return C.nsa_comm_check(c.c) })
}

// Wait waits for a CUDA stream, by address, and for lost ranks at most for the timeout: nsa_comm_wait.
func (c *Comm) Wait(stream uintptr, timeout time.Duration) error {
	return call(func() C.nsa_status {
		return C.nsa_comm_wait(c.c, C.nsa_stream(devicePointer(stream)), milliseconds(timeout))
	})
}

// Close destroys the communicator. No run may be in flight, unless it is dead.
func (c *Comm) Close() {
	C.nsa_comm_destroy(c.c)
	c.c = nil
}

// Over gives runs a communicator: those of plans with Problem.Ranks need one. Close it later than the Exec is
// used.
func (e *Exec) Over(c *Comm) *Exec {
	e.raw.comm = c.c
	return e
}
