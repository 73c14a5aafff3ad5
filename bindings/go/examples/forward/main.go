// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

// A forward on the CPU device: with V = 1 a row of o is the sum of its gates.
package main

import (
	"fmt"
	"log"

	"libnsa/nsa"
)

const (
	T   = 256 // tokens
	HQ  = 8   // query heads
	HKV = 2   // KV heads
	D   = 64  // head dimension
)

// filled is a tensor of [T, heads, dim] with one value, and its memory.
func filled(heads, dim int, value float32) (*nsa.Buffer[nsa.BF16], nsa.Tensor) {
	buffer, err := nsa.NewBuffer[nsa.BF16](T * heads * dim)
	if err != nil {
		log.Fatal(err)
	}
	for i := range buffer.Data() {
		buffer.Data()[i] = nsa.ToBF16(value)
	}
	tensor, err := buffer.Tensor(T, heads, dim)
	if err != nil {
		log.Fatal(err)
	}
	return buffer, tensor
}

func main() {
	model := nsa.Model{Heads: HQ, KVHeads: HKV, HeadDimQK: D, KVSharing: nsa.KVShared}
	ctx, err := nsa.NewContext(nsa.Options{Model: &model, Device: "cpu"})
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	plan, err := ctx.Plan(nsa.Problem{MaxTokens: T})
	if err != nil {
		log.Fatal(err)
	}
	defer plan.Close()
	exec, err := plan.HostExec()
	if err != nil {
		log.Fatal(err)
	}
	defer exec.Free()

	q, qt := filled(HQ, D, 1)
	defer q.Free()
	kv, kvt := filled(HKV, D, 1)
	defer kv.Free()
	logits, gates := filled(HQ, 3, 0) // gates of 1/2
	defer logits.Free()
	o, ot := filled(HQ, D, 0)
	defer o.Free()
	io := nsa.IO{Q: qt, O: ot, Gate: nsa.Gate{Value: gates}}
	io.KV.K[0], io.KV.V[0] = kvt, kvt
	if err := plan.Forward(exec, nil, &io); err != nil {
		log.Fatal(err)
	}
	fmt.Println("o =", o.Data()[T*HQ*D-1].Float32())
}
