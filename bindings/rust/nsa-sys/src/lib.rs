// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

//! The C interface of libnsa as it is: names, structs and functions of `nsa/nsa.h`, whose headers
//! document them. The crate `nsa` has owners, errors and tensors on top.
//!
//! `Default` is the `NSA_*_INIT` of a struct: its size, and zeros.

#![allow(non_camel_case_types)]

#[rustfmt::skip]
mod bindings;
pub use bindings::*;

macro_rules! sized {
    ($($name:ident)*) => { $(
        impl Default for $name {
            fn default() -> Self {
                // Safety: zero is a value of every field: integers, floats, and pointers that may be NULL.
                let mut empty: Self = unsafe { core::mem::zeroed() };
                empty.struct_size = core::mem::size_of::<Self>() as u32;
                empty
            }
        }
    )* };
}
sized!(nsa_model nsa_options nsa_problem nsa_caps nsa_exec nsa_batch nsa_io nsa_grads nsa_shard_options nsa_comm_ops
    nsa_comm_options nsa_tune_event nsa_tune_options);

macro_rules! plain {
    ($($name:ident)*) => { $(
        impl Default for $name {
            fn default() -> Self {
                // Safety: as above.
                unsafe { core::mem::zeroed() }
            }
        }
    )* };
}
plain!(nsa_tensor nsa_kv nsa_phi_side nsa_phi nsa_gate nsa_piece nsa_part);
