// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

/*
#include <nsa/base.h>
#include <stdlib.h>
#include <string.h>
*/
import "C"

import (
	"math"
	"unsafe"
)

// DType is a type of elements.
type DType int32

// The types of elements.
const (
	TypeF16  DType = C.NSA_F16
	TypeBF16 DType = C.NSA_BF16
	TypeF32  DType = C.NSA_F32
	TypeI32  DType = C.NSA_I32
	TypeI64  DType = C.NSA_I64
	TypeE4M3 DType = C.NSA_E4M3
)

// F16 is an IEEE half, by its bits.
type F16 uint16

// BF16 is a bfloat16, by its bits: the upper half of a float32.
type BF16 uint16

// E4M3 is a code of FP8, by its bits: an element of a KV cache, whose scales are in IO.
type E4M3 uint8

// Float32 is the value of a code, without its scale.
func (e E4M3) Float32() float32 {
	exponent, mantissa := int(e>>3&15), float64(e&7)
	magnitude := math.Ldexp(8+mantissa, exponent-10)
	switch {
	case e&0x7f == 0x7f:
		magnitude = math.NaN()
	case exponent == 0:
		magnitude = math.Ldexp(mantissa, -9)
	}
	if e&0x80 != 0 {
		magnitude = -magnitude
	}
	return float32(magnitude)
}

// ToBF16 rounds to the nearest, ties to even.
func ToBF16(f float32) BF16 {
	bits := math.Float32bits(f)
	if f != f {
		return BF16(bits>>16 | 0x40)
	}
	return BF16((bits + 0x7fff + bits>>16&1) >> 16)
}

// Float32 is exact.
func (b BF16) Float32() float32 { return math.Float32frombits(uint32(b) << 16) }

// Element is what a Buffer may consist of.
type Element interface {
	F16 | BF16 | E4M3 | float32 | int32 | int64
}

func dtypeOf[T Element]() DType {
	var zero T
	switch any(zero).(type) {
	case F16:
		return TypeF16
	case BF16:
		return TypeBF16
	case E4M3:
		return TypeE4M3
	case float32:
		return TypeF32
	case int32:
		return TypeI32
	default:
		return TypeI64
	}
}

// Buffer is host memory outside of Go's heap, for the CPU device.
type Buffer[T Element] struct {
	p unsafe.Pointer // nil: freed
	n int
}

const bufferAlign = 256 // bytes, as the memory of a GPU has it

// allocate returns zeroed, aligned memory.
func allocate(bytes, align uint64) (unsafe.Pointer, error) {
	if bytes == 0 {
		bytes = 1
	}
	size := (bytes + align - 1) / align * align // aligned_alloc wants a multiple
	p := unsafe.Pointer(nil)
	if size >= bytes && size < math.MaxInt64 {
		p = C.aligned_alloc(C.size_t(align), C.size_t(size))
	}
	if p == nil {
		return nil, &Error{Status: ErrNoMem, Sentence: "out of host memory"}
	}
	C.memset(p, 0, C.size_t(size))
	return p, nil
}

// NewBuffer allocates n elements, all zero. Free them.
func NewBuffer[T Element](n int) (*Buffer[T], error) {
	var zero T
	if n < 0 || uint64(n) > math.MaxInt64/uint64(unsafe.Sizeof(zero)) {
		return nil, argument("a buffer of %d elements", n)
	}
	p, err := allocate(uint64(n)*uint64(unsafe.Sizeof(zero)), bufferAlign)
	if err != nil {
		return nil, err
	}
	return &Buffer[T]{p, n}, nil
}

// BufferOf allocates a copy of values.
func BufferOf[T Element](values ...T) (*Buffer[T], error) {
	b, err := NewBuffer[T](len(values))
	if err == nil {
		copy(b.Data(), values)
	}
	return b, err
}

// Data is the memory itself, valid until Free.
func (b *Buffer[T]) Data() []T {
	if b.p == nil {
		return nil
	}
	return unsafe.Slice((*T)(b.p), b.n)
}

// Free releases the memory. No tensor of it may be used any more.
func (b *Buffer[T]) Free() {
	C.free(b.p)
	b.p = nil
}

// Tensor is a view of memory. The zero Tensor is absent.
type Tensor struct{ raw C.nsa_tensor }

// Tensor is a contiguous view of the buffer, which has exactly the elements of the shape.
func (b *Buffer[T]) Tensor(shape ...int) (Tensor, error) {
	count, stride := 1, make([]int, len(shape))
	for i := len(shape) - 1; i >= 0; i-- {
		stride[i] = count
		if shape[i] < 0 || shape[i] > 0 && count > math.MaxInt/shape[i] {
			return Tensor{}, argument("a tensor of shape %v", shape)
		}
		count *= shape[i]
	}
	if count != b.n {
		return Tensor{}, argument("a tensor of shape %v is made of a buffer of %d elements", shape, b.n)
	}
	return b.Strided(0, shape, stride)
}

// Strided is a view that begins at an element of the buffer; strides count elements. All of it lies in the
// buffer.
func (b *Buffer[T]) Strided(first int, shape, stride []int) (Tensor, error) {
	if b.p == nil {
		return Tensor{}, argument("the buffer has been freed")
	}
	wrong := argument("a tensor of shape %v with strides %v from element %d on does not lie in a buffer of %d elements",
		shape, stride, first, b.n)
	if first < 0 || first > b.n || len(shape) != len(stride) {
		return Tensor{}, wrong
	}
	last, empty := first, false
	for i, n := range shape {
		if n < 0 || stride[i] < 0 {
			return Tensor{}, wrong
		}
		empty = empty || n == 0
		if n > 1 && stride[i] > (math.MaxInt-last)/(n-1) {
			return Tensor{}, wrong
		}
		if n > 1 {
			last += (n - 1) * stride[i]
		}
	}
	if !empty && last >= b.n {
		return Tensor{}, wrong
	}
	var zero T
	return view(unsafe.Add(b.p, uintptr(first)*unsafe.Sizeof(zero)), dtypeOf[T](), shape, stride)
}

func view(data unsafe.Pointer, dtype DType, shape, stride []int) (Tensor, error) {
	if len(shape) == 0 || len(shape) > C.NSA_MAX_DIMS || len(shape) != len(stride) {
		return Tensor{}, argument("a tensor has 1 to %d dimensions and as many strides, not %v and %v",
			C.NSA_MAX_DIMS, shape, stride)
	}
	t := Tensor{C.nsa_tensor{data: data, ndim: C.int32_t(len(shape)), dtype: C.int32_t(dtype)}}
	for i := range shape {
		t.raw.shape[i] = C.int64_t(shape[i])
		t.raw.stride[i] = C.int64_t(stride[i])
	}
	return t, nil
}

// DeviceTensor is a view of device memory by its address. The memory must stay valid until the stream has
// passed the runs that get it.
func DeviceTensor(address uintptr, dtype DType, shape, stride []int) (Tensor, error) {
	return view(devicePointer(address), dtype, shape, stride)
}

// devicePointer is an address of another device, which Go's memory never has.
func devicePointer(address uintptr) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&address))
}
