// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

//! A forward on the CPU device: with V = 1 a row of o is the sum of its gates.

use nsa::{Bf16, Branch, Context, Exec, Io, Model, Options, Problem, Tensor, TensorMut};

const T: usize = 256; // tokens
const HQ: usize = 8; // query heads
const HKV: usize = 2; // KV heads
const D: usize = 64; // head dimension

fn main() -> nsa::Result<()> {
    let model = Model {
        heads: HQ as i32,
        kv_heads: HKV as i32,
        head_dim_qk: D as i32,
        kv_sharing: nsa::sys::NSA_KV_SHARED,
        ..Default::default()
    };
    let ctx = Context::new(&Options { model: Some(model), device: Some("cpu"), ..Default::default() })?;
    let plan = ctx.plan(&Problem { max_tokens: T as i64, ..Default::default() })?;

    let ones = vec![Bf16::from(1.0); T * HQ * D];
    let logits = vec![0f32; T * HQ * 3]; // gates of 1/2
    let mut o = vec![Bf16::default(); T * HQ * D];
    let kv = Tensor::new(&ones[..T * HKV * D], &[T, HKV, D])?;
    let mut workspace = plan.host_workspace()?;
    let mut io = Io::new()
        .q(Tensor::new(&ones, &[T, HQ, D])?)
        .kv(Branch::Compressed, kv, kv)
        .gates(Tensor::new(&logits, &[T, HQ, 3])?)
        .o(TensorMut::new(&mut o, &[T, HQ, D])?);
    plan.forward(&mut Exec::host(&mut workspace), None, &mut io)?;
    println!("o = {}", f32::from(o[o.len() - 1]));
    Ok(())
}
