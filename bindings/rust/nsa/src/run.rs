// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

use crate::plan::Workspace;
use crate::tensor::{Place, Tensor, TensorMut};
use nsa_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

/// The branches of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Branch {
    Compressed = sys::NSA_CMP as usize,
    Selected = sys::NSA_SEL as usize,
    Window = sys::NSA_WIN as usize,
}

/// The places of the tensors that were given.
#[derive(Clone, Copy, Default)]
pub(crate) struct Places {
    host: bool,
    device: bool,
}

impl Places {
    fn add(&mut self, place: Place) {
        match place {
            Place::Host => self.host = true,
            Place::Device => self.device = true,
        }
    }

    /// A place other than `wanted`.
    pub(crate) fn wrong(self, wanted: Place) -> Option<Place> {
        match wanted {
            Place::Host if self.device => Some(Place::Device),
            Place::Device if self.host => Some(Place::Host),
            _ => None,
        }
    }
}

/// Where a run works: its workspace and its stream.
pub struct Exec<'a> {
    pub(crate) raw: sys::nsa_exec,
    pub(crate) place: Place,
    borrow: PhantomData<&'a mut ()>,
}

// Safety: the workspace is borrowed alone; a stream may be used by any thread.
unsafe impl Send for Exec<'_> {}

impl<'a> Exec<'a> {
    /// On the CPU device.
    pub fn host(workspace: &'a mut Workspace) -> Exec<'a> {
        let (workspace, workspace_bytes) = workspace.parts();
        let raw = sys::nsa_exec { workspace, workspace_bytes, ..Default::default() };
        Exec { raw, place: Place::Host, borrow: PhantomData }
    }

    /// On a GPU.
    ///
    /// # Safety
    /// The workspace is device memory, of the plan's device, of that many bytes. Nothing else uses it, and it
    /// stays valid, until the stream has passed the runs; until then the plans stay, too. The stream belongs
    /// to the plan's CUDA context; NULL is the default stream.
    pub unsafe fn device(workspace: *mut c_void, bytes: u64, stream: sys::nsa_stream) -> Exec<'a> {
        let raw = sys::nsa_exec { workspace, workspace_bytes: bytes, stream, ..Default::default() };
        Exec { raw, place: Place::Device, borrow: PhantomData }
    }

    /// These branches alone; the gates of others count as 0. An empty list is all.
    pub fn branches(mut self, branches: &[Branch]) -> Self {
        self.raw.branches = branches.iter().fold(0, |bits, &branch| bits | 1 << branch as usize);
        self
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $tensor:ident => $($field:ident).+;)*) => { $(
        $(#[$doc])*
        pub fn $name(mut self, tensor: $tensor<'a>) -> Self {
            self.places.add(tensor.place);
            self.raw.$($field).+ = tensor.raw;
            self
        }
    )* };
}

/// How tokens fall into sequences. `include/nsa/attention.h` documents the tensors.
pub struct Batch<'a> {
    pub(crate) raw: sys::nsa_batch,
    pub(crate) places: Places,
    borrow: PhantomData<&'a ()>,
}

// Safety: shared views of plain numbers.
unsafe impl Send for Batch<'_> {}
unsafe impl Sync for Batch<'_> {}

impl<'a> Batch<'a> {
    pub fn new(num_seqs: i32) -> Batch<'a> {
        let raw = sys::nsa_batch { num_seqs, ..Default::default() };
        Batch { raw, places: Places::default(), borrow: PhantomData }
    }

    setters! {
        /// i32 [num_seqs + 1]: where the rows of each sequence begin in q.
        cu_q: Tensor => cu_q;
        /// The same of K and V [cu_q].
        cu_kv: Tensor => cu_kv;
        /// The same of k_cmp and v_cmp.
        cu_cmp: Tensor => cu_cmp;
        /// i32 [num_seqs]: tokens of each sequence in a cache, the new ones included.
        kv_len: Tensor => kv_len;
        /// i32 [num_seqs, any]: the pages of each sequence.
        block_table: Tensor => block_table;
        /// i32 [num_seqs + 1]: where a sequence's pages begin in page_indices.
        page_indptr: Tensor => page_indptr;
        /// i32 [any]: the pages of all sequences.
        page_indices: Tensor => page_indices;
        /// i32 [num_seqs]: the row of each sequence.
        slots: Tensor => slots;
        /// i64 [T], of an append: where each new token goes, or -1.
        slot_mapping: Tensor => slot_mapping;
        /// i32 [num_seqs, any], of a cache over ranks: the pages of compressed entries.
        entry_table: Tensor => entry_table;
    }
}

/// The tensors of a run. `include/nsa/attention.h` documents shapes, and which of them a run reads.
///
/// Outputs, and what some runs write, are borrowed alone. A run takes the whole `Io` mutably: it writes
/// what the `Io` has borrowed. Hence this does not compile:
///
/// ```compile_fail,E0502
/// let mut o = [0f32; 16];
/// let mut io = nsa::Io::new().o(nsa::TensorMut::new(&mut o, &[1, 1, 16]).unwrap());
/// println!("{}", o[0]);
/// io = io.softmax_scale(1.0);
/// ```
///
/// nor this:
///
/// ```compile_fail,E0597
/// let io;
/// {
///     let q = [0f32; 16];
///     io = nsa::Io::new().q(nsa::Tensor::new(&q, &[1, 1, 16]).unwrap());
/// }
/// drop(io);
/// ```
pub struct Io<'a> {
    pub(crate) raw: sys::nsa_io,
    pub(crate) places: Places,
    pub(crate) reads_kv: bool, // some of kv's tensors are shared
    borrow: PhantomData<&'a mut ()>,
}

// Safety: views of plain numbers, the mutable ones borrowed alone.
unsafe impl Send for Io<'_> {}
unsafe impl Sync for Io<'_> {}

impl Default for Io<'_> {
    fn default() -> Self {
        Io::new()
    }
}

impl<'a> Io<'a> {
    pub fn new() -> Io<'a> {
        Io { raw: Default::default(), places: Places::default(), reads_kv: false, borrow: PhantomData }
    }

    /// [Dk^-1/2]
    pub fn softmax_scale(mut self, scale: f32) -> Self {
        self.raw.softmax_scale = scale;
        self
    }

    /// Keys and values of a branch. With shared K and V those of `Branch::Compressed` serve all.
    pub fn kv(mut self, branch: Branch, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        self.reads_kv = true;
        self.pair(branch, k.raw, v.raw, [k.place, v.place]);
        self
    }

    /// The same, in a cache that an append writes.
    pub fn cache(mut self, branch: Branch, k: TensorMut<'a>, v: TensorMut<'a>) -> Self {
        self.pair(branch, k.raw, v.raw, [k.place, v.place]);
        self
    }

    fn pair(&mut self, branch: Branch, k: sys::nsa_tensor, v: sys::nsa_tensor, places: [Place; 2]) {
        places.iter().for_each(|&place| self.places.add(place));
        self.raw.kv.k[branch as usize] = k;
        self.raw.kv.v[branch as usize] = v;
    }

    /// Keys and values of a branch that an append writes into the cache.
    pub fn new_kv(mut self, branch: Branch, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        self.places.add(k.place);
        self.places.add(v.place);
        self.raw.new_kv.k[branch as usize] = k.raw;
        self.raw.new_kv.v[branch as usize] = v.raw;
        self
    }

    /// The output of a branch before the gates.
    pub fn o_branch(mut self, branch: Branch, o: TensorMut<'a>) -> Self {
        self.places.add(o.place);
        self.raw.o_branch[branch as usize] = o.raw;
        self
    }

    /// The logarithm of a branch's sum of exponentials; of dense attention that of `Branch::Compressed`.
    pub fn lse(mut self, branch: Branch, lse: TensorMut<'a>) -> Self {
        self.places.add(lse.place);
        self.raw.lse[branch as usize] = lse.raw;
        self
    }

    /// The scales of a branch's K and V in a cache of `E4m3`, f32 [1] or [Hkv]; absent, they are 1.
    pub fn scales(mut self, branch: Branch, k: Tensor<'a>, v: Tensor<'a>) -> Self {
        self.places.add(k.place);
        self.places.add(v.place);
        self.raw.k_scale[branch as usize] = k.raw;
        self.raw.v_scale[branch as usize] = v.raw;
        self
    }

    setters! {
        q: Tensor => q;
        o: TensorMut => o;
        /// Compressed keys: an input with external phi and in a cache that is read, otherwise an output.
        k_cmp: TensorMut => kv.k_cmp;
        /// Compressed values, likewise.
        v_cmp: TensorMut => kv.v_cmp;
        /// The scale of compressed keys in `E4m3`, f32 [1] or [Hkv]; absent: that of the first K.
        k_cmp_scale: Tensor => k_cmp_scale;
        /// The scale of compressed values, likewise.
        v_cmp_scale: Tensor => v_cmp_scale;
        /// Coarse keys of a cache, where the model has a normalizer.
        k_norm: TensorMut => k_norm;
        /// Queries of the index, where it chooses blocks.
        index_q: Tensor => index_q;
        /// Index keys: an input, and in a cache an output of an append.
        k_idx: TensorMut => k_idx;
        /// Index keys of an append's new tokens.
        new_k_idx: Tensor => new_k_idx;
        /// The scale of index keys in `E4m3`, f32 [1].
        k_idx_scale: Tensor => k_idx_scale;
        /// The log-sum-exp of the index over the chosen blocks, f32 [T, Hi], where the problem has it.
        index_lse: TensorMut => index_lse;
        /// Gates or their logits.
        gates: Tensor => gate.value;
        /// The features of a gate MLP.
        gate_x: Tensor => gate.x;
        gate_w1: Tensor => gate.w1;
        gate_b1: Tensor => gate.b1;
        gate_w2: Tensor => gate.w2;
        gate_b2: Tensor => gate.b2;
        phi_k_pe: Tensor => phi.k.pe;
        phi_k_w: Tensor => phi.k.w;
        phi_k_w1: Tensor => phi.k.w1;
        phi_k_b1: Tensor => phi.k.b1;
        phi_k_w2: Tensor => phi.k.w2;
        phi_k_b2: Tensor => phi.k.b2;
        phi_v_pe: Tensor => phi.v.pe;
        phi_v_w: Tensor => phi.v.w;
        phi_v_w1: Tensor => phi.v.w1;
        phi_v_b1: Tensor => phi.v.b1;
        phi_v_w2: Tensor => phi.v.w2;
        phi_v_b2: Tensor => phi.v.b2;
        /// Selected blocks: an output, or the caller's choice with `sys::NSA_SELECT_BLOCKS`.
        block_idx: TensorMut => block_idx;
        /// The caller's choice with `sys::NSA_SELECT_RANGES`.
        ranges: Tensor => ranges;
    }
}
