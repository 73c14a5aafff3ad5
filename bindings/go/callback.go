// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

/*
#include <stdint.h>
#include <stdlib.h>
*/
import "C"

import (
	"runtime/cgo"
	"sync/atomic"
	"unsafe"
)

func pointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// Log receives a line of the log: its level (LogError and so on), the part of the library that speaks, and
// the text. Any thread may call it, never two at once for one context. It must not call this package. A
// panic is dropped.
type Log func(level int, component, text string)

// Progress reports the progress of a slow call: done, total, and the piece. False cancels the call. A panic
// cancels it, too, and goes on behind it.
type Progress func(done, total int64, what string) bool

// cell is C memory with a handle of a Go value: what C gets as its `user`.
type cell struct{ at *C.uintptr_t }

func newCell(value any) cell {
	at := (*C.uintptr_t)(C.malloc(C.sizeof_uintptr_t)) // cgo's malloc does not return NULL
	*at = C.uintptr_t(cgo.NewHandle(value))
	return cell{at}
}

func (c cell) free() {
	cgo.Handle(*c.at).Delete()
	C.free(pointer(c.at))
}

func valueOf(user unsafe.Pointer) any { return cgo.Handle(*(*C.uintptr_t)(user)).Value() }

// logger is shared by a context and its plans; the last one frees it.
type logger struct {
	cell
	users int32
}

func (l *logger) share() *logger {
	if l != nil {
		atomic.AddInt32(&l.users, 1)
	}
	return l
}

func (l *logger) leave() {
	if l != nil && atomic.AddInt32(&l.users, -1) == 0 {
		l.free()
	}
}

//export nsaGoLog
func nsaGoLog(user unsafe.Pointer, level C.int32_t, component, text *C.char) {
	defer func() { _ = recover() }() // it must not pass through C
	valueOf(user).(Log)(int(level), C.GoString(component), C.GoString(text))
}

type progressCall struct {
	progress Progress
	panicked any
}

//export nsaGoProgress
func nsaGoProgress(user unsafe.Pointer, done, total C.int64_t, what *C.char) (cancel C.int32_t) {
	call := valueOf(user).(*progressCall)
	defer func() {
		if value := recover(); value != nil {
			call.panicked = value
			cancel = 1
		}
	}()
	if call.progress(int64(done), int64(total), C.GoString(what)) {
		return 0
	}
	return 1
}
