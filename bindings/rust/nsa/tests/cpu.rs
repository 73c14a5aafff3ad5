// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

//! What the crate adds to the C library, on the CPU device.

use nsa::{
    sys, Batch, Bf16, Branch, Context, DType, E4m3, Exec, Io, Model, Options, Problem, Tensor, TensorMut,
};
use std::sync::{Arc, Mutex};

const T: usize = 40;
const HQ: usize = 2;
const D: usize = 16;

fn model() -> Model {
    Model {
        heads: HQ as i32,
        kv_heads: 1,
        head_dim_qk: D as i32,
        dtype: sys::NSA_F32,
        compress_block: 16,
        compress_stride: 8,
        select_block: 16,
        select_count: 4,
        window: 16,
        kv_sharing: sys::NSA_KV_SHARED,
        gate: sys::NSA_GATE_WEIGHTS,
        ..Default::default()
    }
}

fn context(overrides: &[&str]) -> nsa::Result<Context> {
    Context::new(&Options { model: Some(model()), device: Some("cpu"), overrides, ..Default::default() })
}

fn forward_problem() -> Problem {
    Problem { max_tokens: T as i64, ..Default::default() }
}

/// Numbers that differ from each other, in -1 .. 1.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Equal scores, and row t of v holds t.
struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    gates: Vec<f32>,
}

fn window_alone() -> Inputs {
    let row = |i: usize| (i / D) as f32;
    let gates = (0..T * HQ * 3).map(|i| (i % 3 == Branch::Window as usize) as u8 as f32).collect();
    Inputs { q: vec![0.0; T * HQ * D], k: vec![0.0; T * D], v: (0..T * D).map(row).collect(), gates }
}

impl Inputs {
    fn io<'a>(&'a self, o: &'a mut [f32]) -> nsa::Result<Io<'a>> {
        let (k, v) = (Tensor::new(&self.k, &[T, 1, D])?, Tensor::new(&self.v, &[T, 1, D])?);
        Ok(Io::new()
            .q(Tensor::new(&self.q, &[T, HQ, D])?)
            .kv(Branch::Compressed, k, v)
            .gates(Tensor::new(&self.gates, &[T, HQ, 3])?)
            .o(TensorMut::new(o, &[T, HQ, D])?))
    }
}

#[test]
fn forward_and_dense_have_the_means() {
    let (ctx, inputs) = (context(&[]).unwrap(), window_alone());
    let mut o = vec![0f32; T * HQ * D];
    let forward = ctx.plan(&forward_problem()).unwrap();
    let mut workspace = forward.host_workspace().unwrap();
    forward.forward(&mut Exec::host(&mut workspace), None, &mut inputs.io(&mut o).unwrap()).unwrap();
    assert!((o[o.len() - 1] - (T as f32 - 8.5)).abs() < 1e-5, "the mean of 16 rows, not {}", o[o.len() - 1]);

    let dense = ctx.plan(&Problem { op: sys::NSA_OP_DENSE, ..forward_problem() }).unwrap();
    let mut workspace = dense.host_workspace().unwrap();
    dense.dense(&mut Exec::host(&mut workspace), None, &mut inputs.io(&mut o).unwrap()).unwrap();
    assert!(
        (o[o.len() - 1] - (T as f32 - 1.0) / 2.0).abs() < 1e-5,
        "the mean of all rows, not {}",
        o[o.len() - 1]
    );
    assert!(ctx.explain(&forward_problem()).contains("reference"));
    assert!(ctx.config(false).contains("heads: 2"));
    assert_eq!(nsa::version().0, sys::NSA_VERSION_MAJOR as u8);
}

#[test]
fn a_branch_that_is_left_out_counts_nothing() {
    let (ctx, inputs) = (context(&[]).unwrap(), window_alone());
    let plan = ctx.plan(&forward_problem()).unwrap();
    let (mut o, mut workspace) = (vec![7f32; T * HQ * D], plan.host_workspace().unwrap());
    let mut exec = Exec::host(&mut workspace).branches(&[Branch::Compressed, Branch::Selected]);
    plan.forward(&mut exec, None, &mut inputs.io(&mut o).unwrap()).unwrap();
    assert!(o.iter().all(|&x| x == 0.0));
}

#[test]
fn threads_share_a_plan_that_outlives_its_context() {
    let ctx = context(&[]).unwrap();
    let plan = ctx.plan(&forward_problem()).unwrap();
    drop(ctx);
    let inputs = window_alone();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut o, mut workspace) = (vec![0f32; T * HQ * D], plan.host_workspace().unwrap());
                let mut io = inputs.io(&mut o).unwrap();
                plan.forward(&mut Exec::host(&mut workspace), None, &mut io).unwrap();
                drop(io);
                assert!((o[o.len() - 1] - (T as f32 - 8.5)).abs() < 1e-5);
            });
        }
    });
}

/// Prefill of a chunk and decoding of the rest over pages give the rows of a forward.
#[test]
fn cache_equals_forward() {
    const P: usize = 16;
    let (ctx, first) = (context(&[]).unwrap(), T - 1);
    let pages = (T + P - 1) / P;
    let inputs = Inputs {
        q: numbers(T * HQ * D, 1),
        k: numbers(T * D, 2),
        v: numbers(T * D, 3),
        gates: numbers(T * HQ * 3, 4),
    };
    let mut whole = vec![0f32; T * HQ * D];
    let plan = ctx.plan(&forward_problem()).unwrap();
    let mut workspace = plan.host_workspace().unwrap();
    plan.forward(&mut Exec::host(&mut workspace), None, &mut inputs.io(&mut whole).unwrap()).unwrap();

    let serving = Problem {
        max_kv_len: T as i64,
        page_size: P as i32,
        max_seqs: 1,
        max_tokens: T as i64,
        ..Default::default()
    };
    assert!(ctx.kv_page_bytes(&Problem { op: sys::NSA_OP_DECODE, max_tokens: 1, ..serving }).unwrap() > 0);
    let append = ctx.plan(&Problem { op: sys::NSA_OP_APPEND, ..serving }).unwrap();
    let prefill = ctx.plan(&Problem { op: sys::NSA_OP_PREFILL, ..serving }).unwrap();
    let decode = ctx.plan(&Problem { op: sys::NSA_OP_DECODE, max_tokens: 1, ..serving }).unwrap();
    let (mut k, mut v) = (vec![0f32; pages * P * D], vec![0f32; pages * P * D]);
    let (mut k_cmp, mut v_cmp) = (vec![0f32; pages * P / 8 * D], vec![0f32; pages * P / 8 * D]);
    let table: Vec<i32> = (0..pages as i32).rev().collect();
    let mut o = vec![0f32; T * HQ * D];
    for (from, to) in [(0, first), (first, T)] {
        let new = to - from;
        let kv_len = [to as i32];
        let batch = Batch::new(1)
            .kv_len(Tensor::new(&kv_len, &[1]).unwrap())
            .block_table(Tensor::new(&table, &[1, pages]).unwrap());
        let (raw, cmp) = ([pages, P, 1, D], [pages, P / 8, 1, D]);
        let mut io = Io::new()
            .new_kv(
                Branch::Compressed,
                Tensor::new(&inputs.k[from * D..to * D], &[new, 1, D]).unwrap(),
                Tensor::new(&inputs.v[from * D..to * D], &[new, 1, D]).unwrap(),
            )
            .cache(
                Branch::Compressed,
                TensorMut::new(&mut k, &raw).unwrap(),
                TensorMut::new(&mut v, &raw).unwrap(),
            )
            .k_cmp(TensorMut::new(&mut k_cmp, &cmp).unwrap())
            .v_cmp(TensorMut::new(&mut v_cmp, &cmp).unwrap())
            .q(Tensor::new(&inputs.q[from * HQ * D..to * HQ * D], &[new, HQ, D]).unwrap())
            .gates(Tensor::new(&inputs.gates[from * HQ * 3..to * HQ * 3], &[new, HQ, 3]).unwrap())
            .o(TensorMut::new(&mut o[from * HQ * D..to * HQ * D], &[new, HQ, D]).unwrap());
        let mut workspace = append.host_workspace().unwrap();
        append.append(&mut Exec::host(&mut workspace), &batch, &mut io).unwrap();
        let plan = if new == 1 { &decode } else { &prefill };
        let mut workspace = plan.host_workspace().unwrap();
        let mut exec = Exec::host(&mut workspace);
        if new == 1 {
            plan.decode(&mut exec, &batch, &mut io)
        } else {
            plan.prefill(&mut exec, &batch, &mut io)
        }
        .unwrap();
    }
    let worst = whole.iter().zip(&o).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-5, "{worst}");
    assert!(whole.iter().any(|x| x.abs() > 0.01), "the forward is not zero");
}

/// An append rounds to codes, and attention is that of code * scale.
#[test]
fn a_cache_of_codes() {
    const P: usize = 16;
    let ctx = context(&[]).unwrap();
    let problem = Problem {
        op: sys::NSA_OP_APPEND,
        max_kv_len: P as i64,
        page_size: P as i32,
        max_seqs: 1,
        max_tokens: P as i64,
        kv_dtype: sys::NSA_E4M3,
        ..Default::default()
    };
    let append = ctx.plan(&problem).unwrap();
    let prefill = ctx.plan(&Problem { op: sys::NSA_OP_PREFILL, ..problem }).unwrap();
    let (new_k, new_v) = (vec![0f32; P * D], vec![3.2f32; P * D]);
    let (mut k, mut v) = (vec![E4m3(0); P * D], vec![E4m3(0); P * D]);
    let (mut k_cmp, mut v_cmp) = (vec![0f32; P / 8 * D], vec![0f32; P / 8 * D]);
    let (q, window) = (vec![1f32; P * HQ * D], Branch::Window as usize);
    let gates: Vec<f32> = (0..P * HQ * 3).map(|i| (i % 3 == window) as u8 as f32).collect();
    let (scale, kv_len, table) = ([0.5f32], [P as i32], [0i32]);
    let mut o = vec![0f32; P * HQ * D];
    let (raw, cmp) = ([1, P, 1, D], [1, P / 8, 1, D]);
    let batch = Batch::new(1)
        .kv_len(Tensor::new(&kv_len, &[1]).unwrap())
        .block_table(Tensor::new(&table, &[1, 1]).unwrap());
    let mut io = Io::new()
        .new_kv(
            Branch::Compressed,
            Tensor::new(&new_k, &[P, 1, D]).unwrap(),
            Tensor::new(&new_v, &[P, 1, D]).unwrap(),
        )
        .cache(
            Branch::Compressed,
            TensorMut::new(&mut k, &raw).unwrap(),
            TensorMut::new(&mut v, &raw).unwrap(),
        )
        .scales(Branch::Compressed, Tensor::new(&scale, &[1]).unwrap(), Tensor::new(&scale, &[1]).unwrap())
        .k_cmp(TensorMut::new(&mut k_cmp, &cmp).unwrap())
        .v_cmp(TensorMut::new(&mut v_cmp, &cmp).unwrap())
        .q(Tensor::new(&q, &[P, HQ, D]).unwrap())
        .gates(Tensor::new(&gates, &[P, HQ, 3]).unwrap())
        .o(TensorMut::new(&mut o, &[P, HQ, D]).unwrap());
    let mut workspace = append.host_workspace().unwrap();
    append.append(&mut Exec::host(&mut workspace), &batch, &mut io).unwrap();
    let mut workspace = prefill.host_workspace().unwrap();
    prefill.prefill(&mut Exec::host(&mut workspace), &batch, &mut io).unwrap();
    drop(io);
    // 3.2 / 0.5 lies between the codes of 6 and 6.5.
    assert!(v.iter().all(|&code| f32::from(code) == 6.5), "{:?}", v[0]);
    assert!((v_cmp[v_cmp.len() - 1] - 3.25).abs() < 1e-6);
    assert!(o.iter().all(|x| (x - 3.25).abs() < 1e-6), "{}", o[0]);
    assert!(
        f32::from(E4m3(0x7f)).is_nan()
            && f32::from(E4m3(0xfe)) == -448.0
            && f32::from(E4m3(1)) == 2f32.powi(-9)
    );
}

#[test]
fn a_packed_tensor_is_a_strided_view() {
    let ctx = context(&[]).unwrap();
    let plan = ctx.plan(&Problem { op: sys::NSA_OP_DENSE, ..forward_problem() }).unwrap();
    let width = (HQ + 2) * D;
    let packed: Vec<f32> =
        (0..T * width).map(|i| if i % width < (HQ + 1) * D { 0.0 } else { (i / width) as f32 }).collect();
    let view =
        |first: usize, heads| Tensor::strided(&packed[first * D..], &[T, heads, D], &[width, D, 1]).unwrap();
    let (mut o, mut workspace) = (vec![0f32; T * HQ * D], plan.host_workspace().unwrap());
    let mut io = Io::new()
        .q(view(0, HQ))
        .kv(Branch::Compressed, view(HQ, 1), view(HQ + 1, 1))
        .o(TensorMut::new(&mut o, &[T, HQ, D]).unwrap());
    plan.dense(&mut Exec::host(&mut workspace), None, &mut io).unwrap();
    drop(io);
    assert!((o[o.len() - 1] - (T as f32 - 1.0) / 2.0).abs() < 1e-5);
}

#[test]
fn errors_have_the_sentence_of_c() {
    let error = Context::new(&Options {
        model: Some(Model { kv_heads: 3, ..model() }),
        device: Some("cpu"),
        ..Default::default()
    })
    .err()
    .expect("3 does not divide 2");
    assert_eq!((error.status(), error.name().as_str()), (sys::NSA_E_CONFIG, "NSA_E_CONFIG"));
    assert!(error.to_string().contains("kv_heads") && !error.trace().is_empty(), "{error}");

    let (ctx, inputs, mut none) = (context(&[]).unwrap(), window_alone(), vec![0f32; T * HQ * D]);
    let plan = ctx.plan(&forward_problem()).unwrap();
    let mut workspace = plan.host_workspace().unwrap();
    let mut io = inputs.io(&mut none).unwrap().gates(Tensor::new(&inputs.gates, &[T * HQ, 3]).unwrap());
    let error = plan.forward(&mut Exec::host(&mut workspace), None, &mut io).unwrap_err();
    assert!(error.status() == sys::NSA_E_ARG && error.to_string().contains("gate"), "{error}");
    assert!(context(&["runtime.jit=n\0ever"]).err().unwrap().to_string().contains("NUL"));
}

#[test]
fn views_do_not_leave_their_memory() {
    let (data, mut out) = (vec![0f32; 12], vec![0f32; 12]);
    assert!(Tensor::new(&data, &[3, 4]).is_ok());
    for shape in [&[3, 5][..], &[13], &[], &[1, 1, 1, 1, 1, 12], &[usize::MAX, 2], &[0]] {
        assert!(Tensor::new(&data, shape).is_err(), "{shape:?}");
        assert!(TensorMut::new(&mut out, shape).is_err(), "{shape:?}");
    }
    assert!(Tensor::strided(&data, &[3, 2], &[5, 1]).is_ok());
    assert!(Tensor::strided(&data, &[3, 3], &[5, 1]).is_err());
    assert!(Tensor::strided(&data, &[3], &[usize::MAX]).is_err());
    assert!(Tensor::strided(&data, &[3, 2], &[5]).is_err());
    assert!(TensorMut::strided(&mut out, &[2, 8], &[5, 1]).is_err());
}

#[test]
fn device_memory_and_unchecked_runs_are_refused_on_the_host() {
    let (ctx, inputs, mut o) = (context(&[]).unwrap(), window_alone(), vec![0f32; T * HQ * D]);
    let plan = ctx.plan(&forward_problem()).unwrap();
    let mut workspace = plan.host_workspace().unwrap();
    // Safety: it is never read.
    let device =
        unsafe { Tensor::device(16 as *const _, DType::F32, &[T, HQ, D], &[(HQ * D) as i64, D as i64, 1]) };
    let mut io = inputs.io(&mut o).unwrap().q(device.unwrap());
    let error = plan.forward(&mut Exec::host(&mut workspace), None, &mut io).unwrap_err();
    assert!(error.to_string().contains("host memory"), "{error}");

    let unchecked = context(&["runtime.check_inputs=off"]).unwrap();
    let plan = unchecked.plan(&forward_problem()).unwrap();
    let mut io = inputs.io(&mut o).unwrap();
    let error = plan.forward(&mut Exec::host(&mut workspace), None, &mut io).unwrap_err();
    assert!(error.to_string().contains("check_inputs"), "{error}");
    let error = plan.append(&mut Exec::host(&mut workspace), &Batch::new(1), &mut io).unwrap_err();
    assert!(error.to_string().contains("Io::cache"), "{error}");
}

#[test]
fn a_log_gets_lines_until_the_last_plan_goes() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let log: Arc<nsa::Log> = Arc::new(move |level, component: &str, line: &str| {
        sink.lock().unwrap().push(format!("{level} {component} {line}"));
        panic!("a log that panics harms nobody");
    });
    let ctx = Context::new(&Options {
        model: Some(model()),
        device: Some("cpu"),
        log_level: sys::NSA_LOG_TRACE,
        log: Some(log),
        ..Default::default()
    })
    .unwrap();
    let plan = ctx.plan(&forward_problem()).unwrap();
    drop(ctx); // warns of the plan
    let seen = lines.lock().unwrap().len();
    assert!(seen > 0);
    assert_eq!(Arc::strong_count(&lines), 2);
    drop(plan);
    assert_eq!(Arc::strong_count(&lines), 1, "the log goes with the last plan");
}

#[test]
fn bf16_rounds_to_the_nearest() {
    for (value, bits) in
        [(1.0, 0x3f80), (-2.0, 0xc000), (1.00390625, 0x3f80), (1.01171875, 0x3f82), (f32::MAX, 0x7f80)]
    {
        assert_eq!(Bf16::from(value).0, bits, "{value}");
    }
    assert!(f32::from(Bf16::from(f32::NAN)).is_nan());
    assert_eq!(f32::from(Bf16(0x3fc0)), 1.5);
}
