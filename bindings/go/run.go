// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

// #include <nsa/nsa.h>
// #include <stdlib.h>
import "C"

import "runtime"

// Values of the fields of a Problem.
const (
	OpForward  = C.NSA_OP_FORWARD
	OpDense    = C.NSA_OP_DENSE
	OpPrefill  = C.NSA_OP_PREFILL
	OpDecode   = C.NSA_OP_DECODE
	OpAppend   = C.NSA_OP_APPEND
	OpBackward = C.NSA_OP_BACKWARD
	OpIndexKL  = C.NSA_OP_INDEX_KL

	SelectTopN   = C.NSA_SELECT_TOPN
	SelectBlocks = C.NSA_SELECT_BLOCKS
	SelectRanges = C.NSA_SELECT_RANGES
	SelectAll    = C.NSA_SELECT_ALL

	OverlapLow  = C.NSA_OVERLAP_LOW
	OverlapHigh = C.NSA_OVERLAP_HIGH
)

// The branches: indices of K, V, OBranch and LSE.
const (
	Compressed = C.NSA_CMP
	Selected   = C.NSA_SEL
	Window     = C.NSA_WIN
	Branches   = C.NSA_BRANCHES
)

// Problem has the fields of nsa_problem: what is computed, by capacity. Zero is the default of each.
type Problem struct {
	Op                     int32
	MaxTokens, MaxKVTokens int64
	MaxKVLen               int64
	MaxSeqs, MaxQLen       int32
	PageSize               int32
	WindowRing             bool
	Selection, Overlap     int32
	MaxProbeRows           int64
	IndexLSE               int   // 1: runs may ask for IO.IndexLSE
	KVDType, CmpDType      DType // of a cache: TypeE4M3; 0: what serving says; -1: the model's
	Ranks, MaxPieces       int32 // of a run over ranks: their number, and the most pieces of one
	UnitTokens             int32 // of a cache over ranks: successive tokens of a sequence on one rank
}

func (p *Problem) c() C.nsa_problem {
	c := C.nsa_problem{
		struct_size: C.sizeof_nsa_problem,
		op:          C.int32_t(p.Op), max_tokens: C.int64_t(p.MaxTokens),
		max_kv_tokens: C.int64_t(p.MaxKVTokens), max_kv_len: C.int64_t(p.MaxKVLen),
		max_seqs: C.int32_t(p.MaxSeqs), max_q_len: C.int32_t(p.MaxQLen), page_size: C.int32_t(p.PageSize),
		selection: C.int32_t(p.Selection), overlap: C.int32_t(p.Overlap),
		max_probe_rows: C.int64_t(p.MaxProbeRows),
		kv_dtype:       C.int32_t(p.KVDType), cmp_dtype: C.int32_t(p.CmpDType),
		index_lse: C.int32_t(p.IndexLSE), ranks: C.int32_t(p.Ranks), max_pieces: C.int32_t(p.MaxPieces),
		unit_tokens: C.int32_t(p.UnitTokens),
	}
	if p.WindowRing {
		c.window_ring = 1
	}
	return c
}

// Caps is what serves a plan.
type Caps struct {
	WorkspaceBytes uint64
	WorkspaceAlign uint32
	Variants       string // "stage=variant ..."; "all=reference" on the CPU device
}

// Plan is a problem with its kernels on a device. It never changes.
type Plan struct {
	c    *C.nsa_plan
	caps Caps
	log  *logger
}

func newPlan(c *C.nsa_plan, log *logger) (*Plan, error) {
	p := &Plan{c: c, log: log}
	caps := C.nsa_caps{struct_size: C.sizeof_nsa_caps}
	if err := call(func() C.nsa_status { return C.nsa_plan_caps(c, &caps) }); err != nil {
		p.Close()
		return nil, err
	}
	p.caps = Caps{uint64(caps.workspace_bytes), uint32(caps.workspace_align), C.GoString(&caps.variants[0])}
	return p, nil
}

// Close destroys the plan. No other goroutine may be using it, and its runs must have finished.
func (p *Plan) Close() {
	if p.c == nil {
		return
	}
	C.nsa_plan_destroy(p.c)
	p.c = nil
	p.log.leave()
}

// Caps says what serves the plan, and which workspace a run needs.
func (p *Plan) Caps() Caps { return p.caps }

// Exec is where a run works. Two runs at once need two.
type Exec struct {
	raw   C.nsa_exec
	owned bool
}

// HostExec allocates a workspace for the CPU device. Free it.
func (p *Plan) HostExec() (*Exec, error) {
	at, err := allocate(p.caps.WorkspaceBytes, uint64(p.caps.WorkspaceAlign))
	if err != nil {
		return nil, err
	}
	e := DeviceExec(0, p.caps.WorkspaceBytes, 0)
	e.raw.workspace, e.owned = at, true
	return e, nil
}

// DeviceExec has a workspace in device memory, and a CUDA stream (0: the default one), both by address.
func DeviceExec(workspace uintptr, bytes uint64, stream uintptr) *Exec {
	return &Exec{raw: C.nsa_exec{
		struct_size: C.sizeof_nsa_exec, workspace: devicePointer(workspace), workspace_bytes: C.uint64_t(bytes),
		stream: C.nsa_stream(devicePointer(stream)),
	}}
}

// Only restricts runs to these branches; without any, all run. The gates of others count as 0.
func (e *Exec) Only(branches ...int) *Exec {
	e.raw.branches = 0
	for _, b := range branches {
		e.raw.branches |= 1 << b
	}
	return e
}

// Free releases the workspace of HostExec.
func (e *Exec) Free() {
	if e.owned {
		C.free(e.raw.workspace)
		e.raw.workspace, e.owned = nil, false
	}
}

// Batch has the fields of nsa_batch: how tokens fall into sequences.
type Batch struct {
	NumSeqs                                                        int32
	CuQ, CuKV, CuCmp                                               Tensor
	KVLen, BlockTable, PageIndptr, PageIndices, Slots, SlotMapping Tensor
	EntryTable                                                     Tensor // of a cache over ranks
	Shard                                                          *Shard // of a forward or backward with Problem.Ranks
}

func (b *Batch) c() *C.nsa_batch {
	if b == nil {
		return nil
	}
	return &C.nsa_batch{
		struct_size: C.sizeof_nsa_batch, num_seqs: C.int32_t(b.NumSeqs),
		cu_q: b.CuQ.raw, cu_kv: b.CuKV.raw, cu_cmp: b.CuCmp.raw,
		kv_len: b.KVLen.raw, block_table: b.BlockTable.raw,
		page_indptr: b.PageIndptr.raw, page_indices: b.PageIndices.raw,
		slots: b.Slots.raw, slot_mapping: b.SlotMapping.raw, shard: b.Shard.handle(),
		entry_table: b.EntryTable.raw,
	}
}

// KV has the fields of nsa_kv.
type KV struct {
	K, V       [Branches]Tensor
	KCmp, VCmp Tensor
}

func (k *KV) c() (c C.nsa_kv) {
	for b := range k.K {
		c.k[b], c.v[b] = k.K[b].raw, k.V[b].raw
	}
	c.k_cmp, c.v_cmp = k.KCmp.raw, k.VCmp.raw
	return c
}

// PhiSide has the fields of nsa_phi_side.
type PhiSide struct{ PE, W, W1, B1, W2, B2 Tensor }

func (p *PhiSide) c() C.nsa_phi_side {
	return C.nsa_phi_side{pe: p.PE.raw, w: p.W.raw, w1: p.W1.raw, b1: p.B1.raw, w2: p.W2.raw, b2: p.B2.raw}
}

// Phi has the fields of nsa_phi.
type Phi struct{ K, V PhiSide }

func (p *Phi) c() C.nsa_phi { return C.nsa_phi{k: p.K.c(), v: p.V.c()} }

// Gate has the fields of nsa_gate.
type Gate struct{ Value, X, W1, B1, W2, B2 Tensor }

func (g *Gate) c() C.nsa_gate {
	return C.nsa_gate{value: g.Value.raw, x: g.X.raw, w1: g.W1.raw, b1: g.B1.raw, w2: g.W2.raw, b2: g.B2.raw}
}

// IO has the fields of nsa_io: the tensors of a run.
type IO struct {
	SoftmaxScale               float32
	Q, O                       Tensor
	KV, NewKV                  KV
	Phi                        Phi
	Gate                       Gate
	BlockIdx, Ranges           Tensor
	Importance                 Tensor
	OBranch, LSE               [Branches]Tensor
	ProbeRows, ProbeImportance Tensor
	KVReads                    Tensor
	KScale, VScale             [Branches]Tensor // of a cache in E4M3
	KCmpScale, VCmpScale       Tensor
	KNorm                      Tensor // of a cache whose model has a normalizer
	IndexQ, KIdx, NewKIdx      Tensor // of a model whose blocks an index chooses
	KIdxScale                  Tensor // of index keys in E4M3
	IndexLSE                   Tensor // out: of the index over the chosen blocks, where Problem.IndexLSE is 1
}

func (io *IO) c() *C.nsa_io {
	c := &C.nsa_io{
		struct_size: C.sizeof_nsa_io, softmax_scale: C.float(io.SoftmaxScale), q: io.Q.raw, o: io.O.raw,
		kv: io.KV.c(), new_kv: io.NewKV.c(), phi: io.Phi.c(), gate: io.Gate.c(),
		block_idx: io.BlockIdx.raw, ranges: io.Ranges.raw, importance: io.Importance.raw,
		probe_rows: io.ProbeRows.raw, probe_importance: io.ProbeImportance.raw, kv_reads: io.KVReads.raw,
		k_cmp_scale: io.KCmpScale.raw, v_cmp_scale: io.VCmpScale.raw, k_norm: io.KNorm.raw,
		index_q: io.IndexQ.raw, k_idx: io.KIdx.raw, new_k_idx: io.NewKIdx.raw, k_idx_scale: io.KIdxScale.raw, index_lse: io.IndexLSE.raw,
	}
	for b := range io.OBranch {
		c.o_branch[b], c.lse[b] = io.OBranch[b].raw, io.LSE[b].raw
		c.k_scale[b], c.v_scale[b] = io.KScale[b].raw, io.VScale[b].raw
	}
	return c
}

// Grads has the fields of nsa_grads.
type Grads struct {
	Accumulate bool
	DO, DQ     Tensor
	DKV        KV
	DPhi       Phi
	DGate      Gate
}

func (g *Grads) c() *C.nsa_grads {
	c := &C.nsa_grads{
		struct_size: C.sizeof_nsa_grads, d_o: g.DO.raw, d_q: g.DQ.raw,
		d_kv: g.DKV.c(), d_phi: g.DPhi.c(), d_gate: g.DGate.c(),
	}
	if g.Accumulate {
		c.accumulate = 1
	}
	return c
}

// IndexGrads has the fields of nsa_index_grads.
type IndexGrads struct {
	Accumulate           bool
	Coefficient          float64 // 0: 1
	Loss, DIndexQ, DKIdx Tensor
}

func (g *IndexGrads) c() *C.nsa_index_grads {
	c := &C.nsa_index_grads{
		struct_size: C.sizeof_nsa_index_grads, coefficient: C.double(g.Coefficient),
		loss: g.Loss.raw, d_index_q: g.DIndexQ.raw, d_k_idx: g.DKIdx.raw,
	}
	if g.Accumulate {
		c.accumulate = 1
	}
	return c
}

// The structs of a call lie in Go's memory and point out of it alone, which cgo allows.
func (p *Plan) run(e *Exec, b *Batch, io *IO, f func(*C.nsa_exec, *C.nsa_batch, *C.nsa_io) C.nsa_status) error {
	batch, tensors := b.c(), io.c()
	err := call(func() C.nsa_status { return f(&e.raw, batch, tensors) })
	runtime.KeepAlive(p)
	return err
}

// Forward enqueues a whole forward: nsa_forward. A nil batch is one sequence.
func (p *Plan) Forward(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_forward(p.c, e, b, io)
	})
}

// Dense enqueues ordinary causal attention: nsa_dense.
func (p *Plan) Dense(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_dense(p.c, e, b, io)
	})
}

// Compress enqueues phi alone: nsa_compress.
func (p *Plan) Compress(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_compress(p.c, e, b, io)
	})
}

// Select enqueues the top-n alone: nsa_select.
func (p *Plan) Select(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_select(p.c, e, b, io)
	})
}

// Append writes new tokens into a cache: nsa_kv_append.
func (p *Plan) Append(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_kv_append(p.c, e, b, io)
	})
}

// Decode attends from a few new tokens of each sequence over a cache: nsa_decode.
func (p *Plan) Decode(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_decode(p.c, e, b, io)
	})
}

// Prefill attends from chunks of new tokens over a cache: nsa_prefill.
func (p *Plan) Prefill(e *Exec, b *Batch, io *IO) error {
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_prefill(p.c, e, b, io)
	})
}

// Backward enqueues a backward pass: nsa_backward.
func (p *Plan) Backward(e *Exec, b *Batch, io *IO, grads *Grads) error {
	g := grads.c()
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_backward(p.c, e, b, io, g)
	})
}

// IndexKL computes the loss of an index branch and its gradients: nsa_index_kl.
func (p *Plan) IndexKL(e *Exec, b *Batch, io *IO, grads *IndexGrads) error {
	g := grads.c()
	return p.run(e, b, io, func(e *C.nsa_exec, b *C.nsa_batch, io *C.nsa_io) C.nsa_status {
		return C.nsa_index_kl(p.c, e, b, io, g)
	})
}
