// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

// #include <nsa/nsa.h>
// #include <stdlib.h>
import "C"

import (
	"reflect"
	"unsafe"
)

// What the tests need of C, since a test must not use cgo itself.

// mirrored pairs each C struct with the Go struct that has its fields. A test holds them against each other.
var mirrored = map[reflect.Type]reflect.Type{
	reflect.TypeOf(C.nsa_model{}):       reflect.TypeOf(Model{}),
	reflect.TypeOf(C.nsa_problem{}):     reflect.TypeOf(Problem{}),
	reflect.TypeOf(C.nsa_batch{}):       reflect.TypeOf(Batch{}),
	reflect.TypeOf(C.nsa_kv{}):          reflect.TypeOf(KV{}),
	reflect.TypeOf(C.nsa_phi_side{}):    reflect.TypeOf(PhiSide{}),
	reflect.TypeOf(C.nsa_phi{}):         reflect.TypeOf(Phi{}),
	reflect.TypeOf(C.nsa_gate{}):        reflect.TypeOf(Gate{}),
	reflect.TypeOf(C.nsa_io{}):          reflect.TypeOf(IO{}),
	reflect.TypeOf(C.nsa_grads{}):       reflect.TypeOf(Grads{}),
	reflect.TypeOf(C.nsa_index_grads{}): reflect.TypeOf(IndexGrads{}),
	reflect.TypeOf(C.nsa_piece{}):       reflect.TypeOf(Piece{}),
}

// reportOnce calls a progress as the library does.
func reportOnce(progress Progress, done, total int64, what string) (cancel int, panicked any) {
	call := &progressCall{progress: progress}
	cell := newCell(call)
	defer cell.free()
	text := C.CString(what)
	defer C.free(unsafe.Pointer(text))
	cancel = int(nsaGoProgress(unsafe.Pointer(cell.at), C.int64_t(done), C.int64_t(total), text))
	return cancel, call.panicked
}
