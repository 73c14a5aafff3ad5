// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

//! Native Sparse Attention by libnsa: owners of contexts and plans, tensors that borrow, and errors with
//! the library's sentence. The C headers document shapes, defaults and the behaviour of every call.
//!
//! On the CPU device tensors are slices, and everything is safe. On a GPU they are addresses of device
//! memory, which the `unsafe` constructors `device` take. Calls that are not here (the backward pass,
//! runs over ranks, tuning, records) are in [`sys`], with [`Context::as_ptr`] and [`Plan::as_ptr`].

mod context;
mod error;
mod plan;
mod run;
mod tensor;

pub use context::{Context, Log, Model, Options, Problem, Progress};
pub use error::{Error, Result};
pub use nsa_sys as sys;
pub use plan::{Caps, Plan, Workspace};
pub use run::{Batch, Branch, Exec, Io};
pub use tensor::{Bf16, DType, E4m3, Element, Tensor, TensorMut, F16};

/// The version of the library that is loaded: major, minor, patch.
pub fn version() -> (u8, u8, u8) {
    // Safety: no conditions.
    let version = unsafe { sys::nsa_version() };
    ((version >> 16) as u8, (version >> 8) as u8, version as u8)
}
