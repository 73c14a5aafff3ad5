// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

package nsa

import (
	"errors"
	"math"
	"math/rand"
	"reflect"
	"strings"
	"sync"
	"testing"
)

const (
	tokens = 40
	heads  = 2
	dim    = 16
)

func smallModel() Model {
	return Model{
		Heads: heads, KVHeads: 1, HeadDimQK: dim, DType: TypeF32,
		CompressBlock: 16, CompressStride: 8, SelectBlock: 16, SelectCount: 4, Window: 16,
		KVSharing: KVShared, Gate: GateWeights,
	}
}

func must[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func newContext(t testing.TB, o Options) *Context {
	t.Helper()
	model := smallModel()
	o.Model, o.Device = &model, "cpu"
	ctx := must(NewContext(o))(t)
	t.Cleanup(ctx.Close)
	return ctx
}

func newTestPlan(t testing.TB, ctx *Context, p Problem) (*Plan, *Exec) {
	t.Helper()
	plan := must(ctx.Plan(p))(t)
	exec := must(plan.HostExec())(t)
	t.Cleanup(func() { exec.Free(); plan.Close() })
	return plan, exec
}

// filled is a buffer and its tensor; value gives element i.
func filled(t testing.TB, value func(i int) float32, shape ...int) (*Buffer[float32], Tensor) {
	t.Helper()
	count := 1
	for _, n := range shape {
		count *= n
	}
	b := must(NewBuffer[float32](count))(t)
	t.Cleanup(b.Free)
	for i := range b.Data() {
		b.Data()[i] = value(i)
	}
	return b, must(b.Tensor(shape...))(t)
}

func zero(int) float32   { return 0 }
func random(int) float32 { return rand.Float32()*2 - 1 }

// windowAlone has equal scores, row i of V holds i, and the gate of the window alone is 1.
func windowAlone(t testing.TB) (IO, *Buffer[float32]) {
	t.Helper()
	var io IO
	_, io.Q = filled(t, zero, tokens, heads, dim)
	_, io.KV.K[0] = filled(t, zero, tokens, 1, dim)
	_, io.KV.V[0] = filled(t, func(i int) float32 { return float32(i / dim) }, tokens, 1, dim)
	_, io.Gate.Value = filled(t, func(i int) float32 {
		if i%3 == Window {
			return 1
		}
		return 0
	}, tokens, heads, 3)
	o, tensor := filled(t, zero, tokens, heads, dim)
	io.O = tensor
	return io, o
}

func near(t testing.TB, got, want float32) {
	t.Helper()
	if math.Abs(float64(got-want)) > 1e-5 {
		t.Errorf("%v instead of %v", got, want)
	}
}

func last[T any](s []T) T { return s[len(s)-1] }

func TestForwardAndDense(t *testing.T) {
	ctx := newContext(t, Options{})
	io, o := windowAlone(t)
	problem := Problem{MaxTokens: tokens}
	plan, exec := newTestPlan(t, ctx, problem)
	if err := plan.Forward(exec, nil, &io); err != nil {
		t.Fatal(err)
	}
	near(t, last(o.Data()), tokens-8.5) // the mean of 16 rows
	if err := plan.Forward(exec.Only(Compressed, Selected), nil, &io); err != nil {
		t.Fatal(err)
	}
	near(t, last(o.Data()), 0)

	problem.Op = OpDense
	plan, exec = newTestPlan(t, ctx, problem)
	if err := plan.Dense(exec, nil, &io); err != nil {
		t.Fatal(err)
	}
	near(t, last(o.Data()), (tokens-1)/2.0)
	if !strings.Contains(ctx.Explain(problem), "reference") || plan.Caps().Variants != "all=reference" {
		t.Error(ctx.Explain(problem), plan.Caps())
	}
	if !strings.Contains(ctx.Config(true), "heads: 2") {
		t.Error(ctx.Config(true))
	}
	if major, minor, _ := Version(); major != 0 || minor != 2 {
		t.Error(major, minor)
	}
}

// A gradient of the window: V's last row gets the last query's 1/16 of d_o, from each of the heads.
func TestBackward(t *testing.T) {
	ctx := newContext(t, Options{})
	io, _ := windowAlone(t)
	blocks := must(NewBuffer[int32](tokens * 4))(t)
	defer blocks.Free()
	io.BlockIdx = must(blocks.Tensor(tokens, 1, 4))(t)
	plan, exec := newTestPlan(t, ctx, Problem{MaxTokens: tokens})
	if err := plan.Forward(exec, nil, &io); err != nil {
		t.Fatal(err)
	}
	plan, exec = newTestPlan(t, ctx, Problem{Op: OpBackward, MaxTokens: tokens})
	var grads Grads
	_, grads.DO = filled(t, func(int) float32 { return 1 }, tokens, heads, dim)
	dv, tensor := filled(t, zero, tokens, 1, dim)
	grads.DKV.V[0] = tensor
	for _, want := range []float32{2 / 16.0, 4 / 16.0} {
		if err := plan.Backward(exec, nil, &io, &grads); err != nil {
			t.Fatal(err)
		}
		near(t, last(dv.Data()), want)
		grads.Accumulate = true
	}
}

// Attention that is even over all tokens, and an index that is not: the loss is the mean over rows of the
// log-sum-exp of the index's scores less their mean and less log(t + 1).
func TestIndexKL(t *testing.T) {
	const indexDim = 16
	model := smallModel()
	model.SelectBlock, model.SelectCount, model.Window, model.Gate = 16, (tokens+15)/16, 0, GateNone
	model.CompressBlock, model.CompressStride, model.Phi = 0, 0, PhiNone
	model.SelectBy, model.SelectPool, model.IndexHeads, model.IndexDim = ByIndex, PoolMax, 1, indexDim
	ctx := must(NewContext(Options{Model: &model, Device: "cpu"}))(t)
	t.Cleanup(ctx.Close)
	var io IO
	_, io.Q = filled(t, zero, tokens, heads, dim)
	_, io.KV.K[0] = filled(t, zero, tokens, 1, dim)
	_, io.KV.V[0] = filled(t, zero, tokens, 1, dim)
	_, io.O = filled(t, zero, tokens, heads, dim)
	_, io.LSE[Selected] = filled(t, zero, tokens, heads)
	_, io.IndexQ = filled(t, func(int) float32 { return 1 }, tokens, 1, indexDim)
	keys, tensor := filled(t, random, tokens, 1, indexDim)
	io.KIdx = tensor
	blocks := must(NewBuffer[int32](tokens * int(model.SelectCount)))(t)
	defer blocks.Free()
	io.BlockIdx = must(blocks.Tensor(tokens, 1, int(model.SelectCount)))(t)
	plan, exec := newTestPlan(t, ctx, Problem{MaxTokens: tokens})
	if err := plan.Forward(exec, nil, &io); err != nil {
		t.Fatal(err)
	}
	var want, total, sum float64
	for i := 0; i < tokens; i++ {
		score := 0.0
		for _, x := range keys.Data()[i*indexDim : (i+1)*indexDim] {
			score += float64(x) / math.Sqrt(indexDim)
		}
		total += math.Exp(score)
		sum += score
		want += (math.Log(total) - sum/float64(i+1) - math.Log(float64(i+1))) / tokens
	}
	plan, exec = newTestPlan(t, ctx, Problem{Op: OpIndexKL, MaxTokens: tokens})
	loss, lossTensor := filled(t, zero, 1)
	dk, dkTensor := filled(t, zero, tokens, 1, indexDim)
	grads := IndexGrads{Loss: lossTensor, DKIdx: dkTensor, Coefficient: 2}
	for i := 1; i <= 2; i++ {
		if err := plan.IndexKL(exec, nil, &io, &grads); err != nil {
			t.Fatal(err)
		}
		near(t, loss.Data()[0], float32(2*want*float64(i)))
		grads.Accumulate = true
	}
	var all float32
	for _, x := range dk.Data() {
		all += x
	}
	near(t, all, 0) // the gradients of a softmax's scores sum to 0
}

// Prefill of a chunk and decoding of the rest over pages give the rows of a forward.
func TestCache(t *testing.T) {
	const page, pages, first = 16, (tokens + 15) / 16, tokens - 1
	ctx := newContext(t, Options{})
	whole, o := windowAlone(t)
	q, _ := filled(t, random, tokens, heads, dim)
	k, _ := filled(t, random, tokens, 1, dim)
	v, _ := filled(t, random, tokens, 1, dim)
	gates, _ := filled(t, random, tokens, heads, 3)
	rows := func(b *Buffer[float32], from, to, heads, dim int) Tensor {
		return must(b.Strided(from*heads*dim, []int{to - from, heads, dim}, []int{heads * dim, dim, 1}))(t)
	}
	whole.Q, whole.Gate.Value = rows(q, 0, tokens, heads, dim), rows(gates, 0, tokens, heads, 3)
	whole.KV.K[0], whole.KV.V[0] = rows(k, 0, tokens, 1, dim), rows(v, 0, tokens, 1, dim)
	plan, exec := newTestPlan(t, ctx, Problem{MaxTokens: tokens})
	if err := plan.Forward(exec, nil, &whole); err != nil {
		t.Fatal(err)
	}

	serving := Problem{Op: OpAppend, MaxTokens: tokens, MaxKVLen: tokens, PageSize: page, MaxSeqs: 1}
	if bytes, err := ctx.KVPageBytes(serving); err != nil || bytes == 0 {
		t.Fatal(bytes, err)
	}
	appendPlan, appendExec := newTestPlan(t, ctx, serving)
	serving.Op = OpPrefill
	prefill, prefillExec := newTestPlan(t, ctx, serving)
	serving.Op, serving.MaxTokens = OpDecode, 1
	decode, decodeExec := newTestPlan(t, ctx, serving)
	var cache KV
	_, cache.K[0] = filled(t, zero, pages, page, 1, dim)
	_, cache.V[0] = filled(t, zero, pages, page, 1, dim)
	_, cache.KCmp = filled(t, zero, pages, page/8, 1, dim)
	_, cache.VCmp = filled(t, zero, pages, page/8, 1, dim)
	table := must(BufferOf[int32](2, 0, 1))(t)
	defer table.Free()
	served, _ := filled(t, zero, tokens, heads, dim)
	for _, step := range [][2]int{{0, first}, {first, tokens}} {
		from, to := step[0], step[1]
		length := must(BufferOf(int32(to)))(t)
		batch := Batch{NumSeqs: 1, KVLen: must(length.Tensor(1))(t), BlockTable: must(table.Tensor(1, pages))(t)}
		io := IO{KV: cache, Q: rows(q, from, to, heads, dim), O: rows(served, from, to, heads, dim)}
		io.NewKV.K[0], io.NewKV.V[0] = rows(k, from, to, 1, dim), rows(v, from, to, 1, dim)
		io.Gate.Value = rows(gates, from, to, heads, 3)
		if err := appendPlan.Append(appendExec, &batch, &io); err != nil {
			t.Fatal(err)
		}
		run, exec := prefill.Prefill, prefillExec
		if to-from == 1 {
			run, exec = decode.Decode, decodeExec
		}
		if err := run(exec, &batch, &io); err != nil {
			t.Fatal(err)
		}
		length.Free()
	}
	largest := float32(0)
	for i, want := range o.Data() {
		near(t, served.Data()[i], want)
		largest = float32(math.Max(float64(largest), math.Abs(float64(want))))
	}
	if largest < 0.01 {
		t.Error("the forward is zero")
	}
}

// An append rounds to codes, and attention is that of code * scale.
func TestCacheOfCodes(t *testing.T) {
	const page = 16
	ctx := newContext(t, Options{})
	problem := Problem{Op: OpAppend, MaxTokens: page, MaxKVLen: page, PageSize: page, MaxSeqs: 1, KVDType: TypeE4M3}
	appendPlan, appendExec := newTestPlan(t, ctx, problem)
	problem.Op = OpPrefill
	prefill, prefillExec := newTestPlan(t, ctx, problem)
	codes := must(NewBuffer[E4M3](2 * page * dim))(t)
	defer codes.Free()
	scale, length := must(BufferOf[float32](0.5))(t), must(BufferOf[int32](page))(t)
	defer scale.Free()
	defer length.Free()
	table := must(BufferOf[int32](0))(t)
	defer table.Free()
	var io IO
	cache := func(at int) Tensor {
		return must(codes.Strided(at, []int{1, page, 1, dim}, []int{page * dim, dim, dim, 1}))(t)
	}
	io.KV.K[0], io.KV.V[0] = cache(0), cache(page*dim)
	_, io.KV.KCmp = filled(t, zero, 1, page/8, 1, dim)
	_, io.KV.VCmp = filled(t, zero, 1, page/8, 1, dim)
	_, io.NewKV.K[0] = filled(t, zero, page, 1, dim)
	_, io.NewKV.V[0] = filled(t, func(int) float32 { return 3.2 }, page, 1, dim)
	io.KScale[0] = must(scale.Tensor(1))(t)
	io.VScale[0] = io.KScale[0]
	_, io.Q = filled(t, zero, page, heads, dim)
	_, io.Gate.Value = filled(t, func(i int) float32 { return float32(i % 3 / 2) }, page, heads, 3) // the window alone
	o, out := filled(t, zero, page, heads, dim)
	io.O = out
	batch := Batch{NumSeqs: 1, KVLen: must(length.Tensor(1))(t), BlockTable: must(table.Tensor(1, 1))(t)}
	if err := appendPlan.Append(appendExec, &batch, &io); err != nil {
		t.Fatal(err)
	}
	if err := prefill.Prefill(prefillExec, &batch, &io); err != nil {
		t.Fatal(err)
	}
	near(t, last(codes.Data()).Float32(), 6.5) // 3.2 / 0.5 lies between 6 and 6.5
	for _, x := range o.Data() {
		near(t, x, 3.25)
	}
	if f := E4M3(0x7f).Float32(); f == f || E4M3(0xfe).Float32() != -448 || E4M3(1).Float32() != 1.0/512 {
		t.Error(f)
	}
}

// Each goroutine reads the sentence of its own failure, whatever threads they move over.
func TestErrorsOfGoroutines(t *testing.T) {
	var wait sync.WaitGroup
	for i := 0; i < 8; i++ {
		wait.Add(1)
		go func(heads int32) {
			defer wait.Done()
			for n := 0; n < 50; n++ {
				model := smallModel()
				model.Heads, model.KVHeads = heads, heads+1
				_, err := NewContext(Options{Model: &model, Device: "cpu", LogLevel: None})
				var failed *Error
				if !errors.As(err, &failed) || !errors.Is(err, ErrConfig) || failed.Status.Name() != "NSA_E_CONFIG" {
					t.Errorf("%v", err)
					return
				}
				if want := "kv_heads"; !strings.Contains(err.Error(), want) || failed.Trace == "" ||
					!strings.Contains(err.Error(), string(rune('0'+heads))) {
					t.Errorf("no %s and %d in: %v", want, heads, err)
				}
			}
		}(int32(i + 1))
	}
	wait.Wait()
}

func TestThreadsShareAPlan(t *testing.T) {
	model := smallModel()
	ctx := must(NewContext(Options{Model: &model, Device: "cpu", LogLevel: None}))(t)
	plan := must(ctx.Plan(Problem{MaxTokens: tokens}))(t)
	ctx.Close() // plans stay valid
	ctx.Close() // and a second one does nothing
	defer plan.Close()
	var wait sync.WaitGroup
	for i := 0; i < 4; i++ {
		io, o := windowAlone(t)
		exec := must(plan.HostExec())(t)
		wait.Add(1)
		go func() {
			defer wait.Done()
			defer exec.Free()
			if err := plan.Forward(exec, nil, &io); err != nil {
				t.Error(err)
			}
			near(t, last(o.Data()), tokens-8.5)
		}()
	}
	wait.Wait()
	if err := plan.Forward(&Exec{}, nil, &IO{}); err == nil {
		t.Error("a run without anything")
	}
}

func TestBadArguments(t *testing.T) {
	for what, o := range map[string]Options{
		"NUL":   {Device: "c\x00pu"},
		"empty": {Device: "cpu", Overrides: []string{"runtime.jit=never", ""}},
		"jot":   {Device: "cpu", Overrides: []string{"runtime.jot=never"}},
		"key":   {Device: "cpu", YAML: "runtime: {key: 1}"},
		"xyz":   {Device: "cpu", File: "/xyz.yaml"},
	} {
		model := smallModel()
		o.Model = &model
		if ctx, err := NewContext(o); err == nil || ctx != nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	b := must(NewBuffer[int32](12))(t)
	good := func(_ Tensor, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	bad := func(_ Tensor, err error) {
		t.Helper()
		if !errors.Is(err, ErrArg) {
			t.Errorf("%v", err)
		}
	}
	good(b.Tensor(3, 4))
	good(b.Strided(1, []int{3, 2}, []int{4, 1}))
	bad(b.Tensor())
	bad(b.Tensor(3, 5))
	bad(b.Tensor(-3, -4))
	bad(b.Tensor(1, 1, 1, 1, 1, 12))
	bad(b.Tensor(math.MaxInt, 2))
	bad(b.Strided(2, []int{3, 2}, []int{5, 1}))
	bad(b.Strided(-1, []int{3}, []int{1}))
	bad(b.Strided(0, []int{3}, []int{math.MaxInt}))
	bad(b.Strided(0, []int{3, 2}, []int{5}))
	b.Free()
	b.Free()
	bad(b.Tensor(12))
	if b.Data() != nil {
		t.Error("memory behind Free")
	}
	if _, err := NewBuffer[int64](-1); err == nil {
		t.Error("a buffer of -1 elements")
	}
}

// The log is called while it is needed, its panics are dropped, and the last plan frees it.
func TestLog(t *testing.T) {
	model := smallModel()
	lines := 0
	ctx := must(NewContext(Options{Model: &model, Device: "cpu", LogLevel: LogTrace,
		Log: func(level int, component, text string) {
			lines++
			panic(component + text)
		}}))(t)
	plan := must(ctx.Plan(Problem{MaxTokens: tokens}))(t)
	log := plan.log
	ctx.Close() // warns of the plan
	if lines == 0 || log.users != 1 {
		t.Error(lines, log.users)
	}
	plan.Close()
	if log.users != 0 {
		t.Error("the log stays")
	}
}

func TestProgress(t *testing.T) {
	for _, p := range []struct {
		name     string
		progress Progress
		cancel   int
		panicked any
	}{
		{"goes on", func(int64, int64, string) bool { return true }, 0, nil},
		{"cancels", func(done, total int64, what string) bool { return what != "piece" || done != 1 }, 1, nil},
		{"panics", func(int64, int64, string) bool { panic("help") }, 1, "help"},
	} {
		if cancel, panicked := reportOnce(p.progress, 1, 2, "piece"); cancel != p.cancel || panicked != p.panicked {
			t.Errorf("%s: %d, %v", p.name, cancel, panicked)
		}
	}
	plan := must(newContext(t, Options{}).PlanWithProgress(Problem{MaxTokens: tokens},
		func(int64, int64, string) bool { return true }))(t)
	plan.Close()
}

func TestBF16(t *testing.T) {
	for _, c := range []struct {
		value float32
		bits  BF16
	}{{1, 0x3f80}, {-2, 0xc000}, {1.00390625, 0x3f80}, {1.01171875, 0x3f82}, {math.MaxFloat32, 0x7f80}} {
		if got := ToBF16(c.value); got != c.bits {
			t.Errorf("%v: %#x instead of %#x", c.value, got, c.bits)
		}
	}
	if f := ToBF16(float32(math.NaN())).Float32(); f == f {
		t.Error(f)
	}
	near(t, BF16(0x3fc0).Float32(), 1.5)
}

// Every field of a C struct that a host sets has its field in Go.
func TestMirroredFields(t *testing.T) {
	if len(mirrored) != 11 {
		t.Error(len(mirrored))
	}
	plain := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "_", "")) }
	for c, g := range mirrored {
		want, have := map[string]bool{}, map[string]bool{}
		for i := 0; i < c.NumField(); i++ {
			if name := plain(c.Field(i).Name); name != "structsize" && name != "reserved" && name != "" {
				want[name] = true
			}
		}
		for i := 0; i < g.NumField(); i++ {
			have[plain(g.Field(i).Name)] = true
		}
		if !reflect.DeepEqual(want, have) {
			t.Errorf("%v has %v, %v has %v", c, want, g, have)
		}
	}
}

// Two goroutines are two ranks, and each has half of the rows.
func TestRanks(t *testing.T) {
	const ranks = 2
	ctx := newContext(t, Options{})
	shard := must(ctx.Shard(ShardOptions{Ranks: ranks, Lengths: []int64{tokens}, Alignment: 8}))(t)
	defer shard.Close()
	comms := must(ctx.Loopback(ranks, 0))(t)
	plan := must(ctx.Plan(Problem{
		Ranks: ranks, MaxTokens: shard.Tokens(-1), MaxKVTokens: tokens, MaxPieces: shard.MaxPieces(),
	}))(t)
	defer plan.Close()
	whole, want := windowAlone(t)
	alone, exec := newTestPlan(t, ctx, Problem{MaxTokens: tokens})
	if err := alone.Forward(exec, nil, &whole); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	var ios [ranks]IO
	var outputs [ranks]*Buffer[float32]
	for rank := range comms {
		ios[rank], outputs[rank] = rowsOf(t, must(shard.Pieces(rank))(t))
	}
	for rank := range comms {
		done.Add(1)
		go func(rank int) {
			defer done.Done()
			defer comms[rank].Close()
			exec, err := plan.HostExec()
			if err == nil {
				defer exec.Free()
				err = comms[rank].Agree(shard, 0, plan)
			}
			if err == nil {
				err = plan.Forward(exec.Over(comms[rank]), &Batch{NumSeqs: 1, Shard: shard}, &ios[rank])
			}
			if err == nil {
				err = comms[rank].Wait(0, 0)
			}
			if err == nil {
				err = comms[rank].Check()
			}
			if err != nil {
				t.Error(err)
			}
		}(rank)
	}
	done.Wait()
	for rank := range comms {
		row := 0
		for _, p := range must(shard.Pieces(rank))(t) {
			for i := 0; i < int(p.Length); i, row = i+1, row+1 {
				const width = heads * dim
				at := (int(p.Begin) + i) * width
				if !reflect.DeepEqual(outputs[rank].Data()[row*width:(row+1)*width], want.Data()[at:at+width]) {
					t.Fatalf("rank %d, row %d", rank, row)
				}
			}
		}
	}
}

// Two goroutines decode the last token over a cache of whose pages each has its turns; a third cache is whole.
func TestCacheOverRanks(t *testing.T) {
	const ranks, page, pages = 2, 16, (tokens + 15) / 16
	ctx := newContext(t, Options{})
	comms := must(ctx.Loopback(ranks, 0))(t)
	length, table := must(BufferOf(int32(tokens)))(t), must(BufferOf[int32](2, 0, 1, 1, 2, 0))(t)
	defer length.Free()
	defer table.Free()
	row := func(at int) Tensor { return must(table.Strided(at, []int{1, pages}, []int{pages, 1}))(t) }
	var io IO
	_, io.NewKV.K[0] = filled(t, random, tokens, 1, dim)
	_, io.NewKV.V[0] = filled(t, random, tokens, 1, dim)
	_, io.Q = filled(t, random, 1, heads, dim)
	_, io.Gate.Value = filled(t, random, 1, heads, 3)
	var done sync.WaitGroup
	var outputs [ranks + 1]*Buffer[float32]
	for rank := range outputs {
		serving := Problem{Op: OpAppend, MaxTokens: tokens, MaxKVLen: tokens, PageSize: page, MaxSeqs: 1}
		batch, io := Batch{NumSeqs: 1, KVLen: must(length.Tensor(1))(t), BlockTable: row(0)}, io
		if rank < ranks {
			serving.Ranks, serving.UnitTokens = ranks, page
			batch.EntryTable = row(pages)
		}
		plan, exec := newTestPlan(t, ctx, serving)
		serving.Op, serving.MaxTokens = OpDecode, 1
		decode, decodeExec := newTestPlan(t, ctx, serving)
		_, io.KV.K[0] = filled(t, zero, pages, page, 1, dim)
		_, io.KV.V[0] = filled(t, zero, pages, page, 1, dim)
		_, io.KV.KCmp = filled(t, zero, pages, page/8, 1, dim)
		_, io.KV.VCmp = filled(t, zero, pages, page/8, 1, dim)
		outputs[rank], io.O = filled(t, zero, 1, heads, dim)
		if err := plan.Append(exec, &batch, &io); err != nil {
			t.Fatal(err)
		}
		done.Add(1)
		go func(rank int) {
			defer done.Done()
			var err error
			if rank < ranks {
				defer comms[rank].Close()
				decodeExec.Over(comms[rank])
				err = comms[rank].Agree(nil, 0, decode)
			}
			if err == nil {
				err = decode.Decode(decodeExec, &batch, &io)
			}
			if err != nil {
				t.Error(err)
			}
		}(rank)
	}
	done.Wait()
	for i, want := range outputs[ranks].Data() {
		near(t, outputs[0].Data()[i], want)
		near(t, outputs[1].Data()[i], want)
	}
}

// rowsOf is windowAlone of the rows of some pieces.
func rowsOf(t testing.TB, pieces []Piece) (IO, *Buffer[float32]) {
	t.Helper()
	var io IO
	var positions []int
	for _, p := range pieces {
		for i := int64(0); i < p.Length; i++ {
			positions = append(positions, int(p.Begin+i))
		}
	}
	count := len(positions)
	_, io.Q = filled(t, zero, count, heads, dim)
	_, io.KV.K[0] = filled(t, zero, count, 1, dim)
	_, io.KV.V[0] = filled(t, func(i int) float32 { return float32(positions[i/dim]) }, count, 1, dim)
	_, io.Gate.Value = filled(t, func(i int) float32 {
		if i%3 == Window {
			return 1
		}
		return 0
	}, count, heads, 3)
	o, tensor := filled(t, zero, count, heads, dim)
	io.O = tensor
	return io, o
}
