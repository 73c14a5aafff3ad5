// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

use crate::context::Logger;
use crate::error::{check, text, Error, Result};
use crate::run::{Batch, Exec, Io};
use crate::tensor::Place;
use nsa_sys as sys;
use std::alloc::{alloc_zeroed, dealloc, handle_alloc_error, Layout};
use std::os::raw::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// What serves a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Memory that a run needs, and its alignment, in bytes.
    pub workspace_bytes: u64,
    pub workspace_align: u32,
    /// `"stage=variant ..."`; `"all=reference"` on the CPU device.
    pub variants: String,
}

/// A problem with its kernels on a device. It never changes, and threads may share it.
pub struct Plan {
    raw: *mut sys::nsa_plan,
    caps: Caps,
    checks_inputs: bool,
    _logger: Option<Arc<Logger>>,
}

// Safety: an nsa_plan never changes, and Drop has it alone.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

type Run = unsafe extern "C" fn(
    *const sys::nsa_plan,
    *const sys::nsa_exec,
    *const sys::nsa_batch,
    *const sys::nsa_io,
) -> sys::nsa_status;

impl Plan {
    /// # Safety
    /// `raw` is a plan without another owner.
    pub(crate) unsafe fn new(
        raw: *mut sys::nsa_plan,
        logger: Option<Arc<Logger>>,
        checks_inputs: bool,
    ) -> Result<Plan> {
        let nothing = Caps { workspace_bytes: 0, workspace_align: 1, variants: String::new() };
        let mut plan = Plan { raw, caps: nothing, checks_inputs, _logger: logger };
        let mut caps = sys::nsa_caps::default();
        check(sys::nsa_plan_caps(raw, &mut caps))?;
        plan.caps = Caps {
            workspace_bytes: caps.workspace_bytes,
            workspace_align: caps.workspace_align,
            variants: text(caps.variants.as_ptr()),
        };
        Ok(plan)
    }

    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Whether it runs on the CPU device, whose tensors lie in host memory.
    pub fn is_on_host(&self) -> bool {
        self.caps.variants == "all=reference"
    }

    /// A workspace in host memory, for runs on the CPU device.
    pub fn host_workspace(&self) -> Result<Workspace> {
        Workspace::new(self.caps.workspace_bytes, self.caps.workspace_align)
    }

    /// Enqueues a whole forward: `nsa_forward`. `None`: one sequence.
    pub fn forward(&self, exec: &mut Exec, batch: Option<&Batch>, io: &mut Io) -> Result<()> {
        self.run(sys::nsa_forward, exec, batch, io)
    }

    /// Enqueues ordinary causal attention over q, k and v of branch 0: `nsa_dense`.
    pub fn dense(&self, exec: &mut Exec, batch: Option<&Batch>, io: &mut Io) -> Result<()> {
        self.run(sys::nsa_dense, exec, batch, io)
    }

    /// Writes new tokens into a cache, which [`Io::cache`] gives: `nsa_kv_append`.
    pub fn append(&self, exec: &mut Exec, batch: &Batch, io: &mut Io) -> Result<()> {
        if io.reads_kv {
            return Err(Error::argument(
                "an append writes the cache: give its keys and values with Io::cache, not Io::kv",
            ));
        }
        self.run(sys::nsa_kv_append, exec, Some(batch), io)
    }

    /// Attends from a few new tokens of each sequence over a cache: `nsa_decode`.
    pub fn decode(&self, exec: &mut Exec, batch: &Batch, io: &mut Io) -> Result<()> {
        self.run(sys::nsa_decode, exec, Some(batch), io)
    }

    /// Attends from chunks of new tokens over a cache: `nsa_prefill`.
    pub fn prefill(&self, exec: &mut Exec, batch: &Batch, io: &mut Io) -> Result<()> {
        self.run(sys::nsa_prefill, exec, Some(batch), io)
    }

    fn run(&self, call: Run, exec: &mut Exec, batch: Option<&Batch>, io: &mut Io) -> Result<()> {
        let wanted = if self.is_on_host() { Place::Host } else { Place::Device };
        let places =
            [Some(exec.place), batch.and_then(|batch| batch.places.wrong(wanted)), io.places.wrong(wanted)];
        if places.iter().flatten().any(|&place| place != wanted) {
            return Err(Error::argument(match wanted {
                Place::Host => {
                    "the plan runs on the CPU device: its tensors and its workspace lie in host memory"
                }
                Place::Device => "the plan runs on a GPU: its tensors and its workspace lie in device memory",
            }));
        }
        // On a GPU whoever made the tensors has promised that they fit.
        if self.is_on_host() && !self.checks_inputs {
            return Err(Error::argument(
                "`runtime.check_inputs` is off, and runs over slices rely on it: remove it, or NSA_CHECK_INPUTS",
            ));
        }
        let batch = batch.map_or(std::ptr::null(), |batch| &batch.raw);
        // Safety: the tensors live as long as exec, batch and io, or by the promise of whoever made those
        // of device memory; outputs are borrowed alone. The library checks shapes, strides and overlap.
        check(unsafe { call(self.raw, &exec.raw, batch, &io.raw) })
    }

    /// The handle, for calls of `nsa::sys` that this crate does not have.
    pub fn as_ptr(&self) -> *const sys::nsa_plan {
        self.raw
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // Safety: nobody else uses it: `self` is borrowed alone.
        unsafe { sys::nsa_plan_destroy(self.raw) };
    }
}

/// Aligned host memory for runs on the CPU device. Two runs at once need two.
pub struct Workspace {
    at: NonNull<u8>,
    layout: Layout,
}

// Safety: it owns its memory.
unsafe impl Send for Workspace {}
unsafe impl Sync for Workspace {}

impl Workspace {
    /// `align` is a power of two.
    pub fn new(bytes: u64, align: u32) -> Result<Workspace> {
        let wrong =
            |_| Error::argument(format!("no workspace of {bytes} bytes with an alignment of {align}"));
        let size = usize::try_from(bytes.max(1)).map_err(|_| ()).map_err(wrong)?;
        let layout = Layout::from_size_align(size, align as usize).map_err(|_| ()).map_err(wrong)?;
        // Safety: the size is not 0.
        let at = unsafe { alloc_zeroed(layout) };
        NonNull::new(at).map(|at| Workspace { at, layout }).map_or_else(|| handle_alloc_error(layout), Ok)
    }

    pub(crate) fn parts(&mut self) -> (*mut c_void, u64) {
        (self.at.as_ptr().cast(), self.layout.size() as u64)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // Safety: allocated with this layout.
        unsafe { dealloc(self.at.as_ptr(), self.layout) };
    }
}
