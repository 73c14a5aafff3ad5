// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

// Package nsa is Native Sparse Attention by libnsa, which pkg-config finds. The C headers in include/nsa
// document shapes, defaults and the behaviour of every call.
//
// Tensors of the CPU device lie in memory that NewBuffer allocates outside of Go's heap, since a C struct
// must not point into it. Contexts, plans, buffers and execs are freed by hand. Contexts and plans may be
// shared by goroutines.
package nsa

/*
#cgo pkg-config: libnsa
#include <nsa/nsa.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"runtime"
)

// Status is a status code of the library. As an error it matches every Error that has it:
// errors.Is(err, nsa.ErrConfig).
type Status int32

// The status codes.
const (
	ErrArg         Status = C.NSA_E_ARG
	ErrConfig      Status = C.NSA_E_CONFIG
	ErrUnsupported Status = C.NSA_E_UNSUPPORTED
	ErrNoDriver    Status = C.NSA_E_NO_DRIVER
	ErrNoDevice    Status = C.NSA_E_NO_DEVICE
	ErrNoCompiler  Status = C.NSA_E_NO_COMPILER
	ErrCompile     Status = C.NSA_E_COMPILE
	ErrCUDA        Status = C.NSA_E_CUDA
	ErrNoMem       Status = C.NSA_E_NOMEM
	ErrWorkspace   Status = C.NSA_E_WORKSPACE
	ErrCache       Status = C.NSA_E_CACHE
	ErrNotPrepared Status = C.NSA_E_NOT_PREPARED
	ErrCancelled   Status = C.NSA_E_CANCELLED
	ErrVerify      Status = C.NSA_E_VERIFY
	ErrVersion     Status = C.NSA_E_VERSION
	ErrNoCuBLASLt  Status = C.NSA_E_NO_CUBLASLT
	ErrIO          Status = C.NSA_E_IO
	ErrForked      Status = C.NSA_E_FORKED
	ErrRanks       Status = C.NSA_E_RANKS
	ErrInternal    Status = C.NSA_E_INTERNAL
)

// Name is that of the C constant, as "NSA_E_ARG".
func (s Status) Name() string { return C.GoString(C.nsa_status_name(C.nsa_status(s))) }

// Error says what the status means in general.
func (s Status) Error() string { return C.GoString(C.nsa_status_text(C.nsa_status(s))) }

// Error is a failed call.
type Error struct {
	Status   Status
	Sentence string // what was wrong, where, and what to do about it
	Trace    string // the internal functions that it passed through, for bug reports
}

func (e *Error) Error() string { return e.Sentence }

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.Status }

// call makes a call and reads its error text in the same thread: the texts are the thread's.
func call(f func() C.nsa_status) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	status := f()
	if status == C.NSA_OK {
		return nil
	}
	return &Error{Status(status), C.GoString(C.nsa_last_error()), C.GoString(C.nsa_last_trace())}
}

// argument is an error that does not reach the library.
func argument(format string, values ...any) error {
	return &Error{Status: ErrArg, Sentence: fmt.Sprintf(format, values...)}
}

// text calls a function that writes as snprintf does.
func text(write func(buf *C.char, size C.size_t) C.size_t) string {
	size := write(nil, 0) + 1
	for {
		buf := (*C.char)(C.malloc(size))
		length := write(buf, size)
		if length < size {
			s := C.GoStringN(buf, C.int(length))
			C.free(pointer(buf))
			return s
		}
		C.free(pointer(buf))
		size = length + 1
	}
}

// Version is that of the library that is loaded.
func Version() (major, minor, patch int) {
	v := int(C.nsa_version())
	return v >> 16, v >> 8 & 0xff, v & 0xff
}
