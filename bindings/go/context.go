// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

/*
#include <nsa/nsa.h>
#include <stdlib.h>

extern void nsaGoLog(void *user, int32_t level, char *component, char *text);
extern int32_t nsaGoProgress(void *user, int64_t done, int64_t total, char *what);
*/
import "C"

import (
	"runtime"
	"strings"
	"unsafe"
)

// None is zero in a field whose 0 stands for another default.
const None = C.NSA_NONE

// Levels of the log.
const (
	LogError = C.NSA_LOG_ERROR
	LogWarn  = C.NSA_LOG_WARN
	LogInfo  = C.NSA_LOG_INFO
	LogDebug = C.NSA_LOG_DEBUG
	LogTrace = C.NSA_LOG_TRACE
)

// Values of the fields of a Model.
const (
	PhiMean     = C.NSA_PHI_MEAN
	PhiLinear   = C.NSA_PHI_LINEAR
	PhiMLP      = C.NSA_PHI_MLP
	PhiExternal = C.NSA_PHI_EXTERNAL
	PhiNone     = C.NSA_PHI_NONE

	ActReLU = C.NSA_ACT_RELU
	ActSiLU = C.NSA_ACT_SILU
	ActGELU = C.NSA_ACT_GELU

	GateWeights = C.NSA_GATE_WEIGHTS
	GateLogits  = C.NSA_GATE_LOGITS
	GateMLP     = C.NSA_GATE_MLP
	GateNone    = C.NSA_GATE_NONE

	ByCompressed = C.NSA_BY_COMPRESSED
	ByIndex      = C.NSA_BY_INDEX

	PoolSum = C.NSA_POOL_SUM
	PoolMax = C.NSA_POOL_MAX

	KVPerBranch = C.NSA_KV_PER_BRANCH
	KVShared    = C.NSA_KV_SHARED
)

// Model has the fields of nsa_model. Zero is the default of each.
type Model struct {
	Heads, KVHeads, HeadDimQK, HeadDimV               int32
	DType                                             DType
	CompressBlock, CompressStride                     int32
	Phi, PhiHidden, PhiActivation                     int32
	SelectBlock, SelectCount, SelectInit, SelectLocal int32
	Window                                            int32
	Gate, GateChannels, GateHidden, GateActivation    int32
	KVSharing                                         int32
	CompressOutput                                    int32
	SelectPool, NormalizerBlock, NormalizerStride     int32
	SelectBy, IndexHeads, IndexDim                    int32
}

func (m *Model) fill(c *C.nsa_model) {
	*c = C.nsa_model{
		struct_size: C.sizeof_nsa_model,
		heads:       C.int32_t(m.Heads), kv_heads: C.int32_t(m.KVHeads),
		head_dim_qk: C.int32_t(m.HeadDimQK), head_dim_v: C.int32_t(m.HeadDimV), dtype: C.int32_t(m.DType),
		compress_block: C.int32_t(m.CompressBlock), compress_stride: C.int32_t(m.CompressStride),
		phi: C.int32_t(m.Phi), phi_hidden: C.int32_t(m.PhiHidden), phi_activation: C.int32_t(m.PhiActivation),
		select_block: C.int32_t(m.SelectBlock), select_count: C.int32_t(m.SelectCount),
		select_init: C.int32_t(m.SelectInit), select_local: C.int32_t(m.SelectLocal),
		window: C.int32_t(m.Window), gate: C.int32_t(m.Gate), gate_channels: C.int32_t(m.GateChannels),
		gate_hidden: C.int32_t(m.GateHidden), gate_activation: C.int32_t(m.GateActivation),
		kv_sharing: C.int32_t(m.KVSharing), compress_output: C.int32_t(m.CompressOutput),
		select_pool: C.int32_t(m.SelectPool), normalizer_block: C.int32_t(m.NormalizerBlock),
		normalizer_stride: C.int32_t(m.NormalizerStride), select_by: C.int32_t(m.SelectBy),
		index_heads: C.int32_t(m.IndexHeads), index_dim: C.int32_t(m.IndexDim),
	}
}

// Options is what a context is made from. The model comes from here, from a file or from a text.
type Options struct {
	File      string   // a configuration file
	YAML      string   // a configuration, laid over the file's
	Model     *Model   // replaces the section `model`
	Device    string   // "cpu", "cuda:1", a PCI bus id or a UUID
	Arch      string   // compiles for this architecture without a device
	Overrides []string // "runtime.jit=never"; stronger than all else
	LogLevel  int32    // LogError and so on; None: silence
	Log       Log      // nil: lines go to stderr
}

// Context is a model and a configuration on one device.
type Context struct {
	c   *C.nsa_ctx
	log *logger
}

// memory is C memory that one call needs.
type memory []unsafe.Pointer

func (m *memory) alloc(size C.size_t) unsafe.Pointer {
	p := C.calloc(1, size)
	if p == nil {
		panic("nsa: out of memory")
	}
	*m = append(*m, p)
	return p
}

// text copies a string; "" is NULL.
func (m *memory) text(s string) (*C.char, error) {
	if s == "" {
		return nil, nil
	}
	if strings.IndexByte(s, 0) >= 0 {
		return nil, argument("a text contains a NUL: %q", s)
	}
	c := C.CString(s)
	*m = append(*m, unsafe.Pointer(c))
	return c, nil
}

func (m *memory) free() {
	for _, p := range *m {
		C.free(p)
	}
}

// NewContext makes a context: nsa_create. Close it.
func NewContext(o Options) (*Context, error) {
	var m memory
	defer m.free()
	var failed error
	text := func(s string) *C.char {
		c, err := m.text(s)
		if err != nil {
			failed = err
		}
		return c
	}
	options := (*C.nsa_options)(m.alloc(C.sizeof_nsa_options))
	options.struct_size = C.sizeof_nsa_options
	options.log_level = C.int32_t(o.LogLevel)
	options.device = text(o.Device)
	options.arch = text(o.Arch)
	options.yaml_text = text(o.YAML)
	file := text(o.File)
	if o.Model != nil {
		model := (*C.nsa_model)(m.alloc(C.sizeof_nsa_model))
		o.Model.fill(model)
		options.model = model
	}
	if len(o.Overrides) > 0 {
		list := (**C.char)(m.alloc(C.size_t(len(o.Overrides)+1) * C.size_t(unsafe.Sizeof(uintptr(0)))))
		for i, one := range o.Overrides {
			if one == "" {
				failed = argument("an override is empty")
			}
			unsafe.Slice(list, len(o.Overrides))[i] = text(one)
		}
		options.overrides = list
	}
	if failed != nil {
		return nil, failed
	}
	ctx := &Context{}
	if o.Log != nil {
		ctx.log = &logger{newCell(o.Log), 1}
		options.log = C.nsa_log_fn(C.nsaGoLog)
		options.log_user = unsafe.Pointer(ctx.log.at)
	}
	var made *C.nsa_ctx
	if err := call(func() C.nsa_status { return C.nsa_create(file, options, &made) }); err != nil {
		ctx.log.leave()
		return nil, err
	}
	ctx.c = made
	return ctx, nil
}

// Close releases the context. No other goroutine may be using it. Its plans stay valid.
func (ctx *Context) Close() {
	if ctx.c == nil {
		return
	}
	C.nsa_destroy(ctx.c)
	ctx.c = nil
	ctx.log.leave()
}

// Plan makes a plan: it chooses, compiles and loads, which is the slow call. Close it.
func (ctx *Context) Plan(p Problem) (*Plan, error) { return ctx.PlanWithProgress(p, nil) }

// PlanWithProgress makes a plan and reports what it does.
func (ctx *Context) PlanWithProgress(p Problem, progress Progress) (*Plan, error) {
	problem := p.c()
	var report C.nsa_progress_fn
	var user unsafe.Pointer
	running := &progressCall{progress: progress}
	if progress != nil {
		cell := newCell(running)
		defer cell.free()
		report, user = C.nsa_progress_fn(C.nsaGoProgress), unsafe.Pointer(cell.at)
	}
	var made *C.nsa_plan
	err := call(func() C.nsa_status { return C.nsa_plan_create(ctx.c, &problem, report, user, &made) })
	runtime.KeepAlive(ctx)
	if running.panicked != nil {
		C.nsa_plan_destroy(made)
		panic(running.panicked)
	}
	if err != nil {
		return nil, err
	}
	return newPlan(made, ctx.log.share())
}

// Explain says why a problem is served as it is.
func (ctx *Context) Explain(p Problem) string {
	problem := p.c()
	return text(func(buf *C.char, size C.size_t) C.size_t { return C.nsa_explain(ctx.c, &problem, buf, size) })
}

// Config is the effective configuration as YAML, with where each value came from if withOrigin.
func (ctx *Context) Config(withOrigin bool) string {
	origin := C.int32_t(0)
	if withOrigin {
		origin = 1
	}
	return text(func(buf *C.char, size C.size_t) C.size_t { return C.nsa_config_dump(ctx.c, origin, buf, size) })
}

// KVPageBytes is the size of one page of a cache in one layer.
func (ctx *Context) KVPageBytes(p Problem) (uint64, error) {
	problem := p.c()
	var bytes C.uint64_t
	err := call(func() C.nsa_status { return C.nsa_kv_page_bytes(ctx.c, &problem, &bytes) })
	return uint64(bytes), err
}
