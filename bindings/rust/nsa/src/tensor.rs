// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

use crate::error::{Error, Result};
use nsa_sys as sys;
use std::marker::PhantomData;
use std::os::raw::c_void;

/// Types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum DType {
    F16 = sys::NSA_F16,
    Bf16 = sys::NSA_BF16,
    F32 = sys::NSA_F32,
    I32 = sys::NSA_I32,
    I64 = sys::NSA_I64,
    E4M3 = sys::NSA_E4M3,
}

/// An IEEE half, by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct F16(pub u16);

/// A bfloat16, by its bits: the upper half of a float.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bf16(pub u16);

/// A code of FP8 E4M3, by its bits: an element of a KV cache, see `Io::scales`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct E4m3(pub u8);

impl From<E4m3> for f32 {
    /// The value of a code, without its scale.
    fn from(code: E4m3) -> f32 {
        let (exponent, mantissa) = (i32::from(code.0 >> 3 & 15), f32::from(code.0 & 7));
        let magnitude = match (exponent, code.0 & 0x7f) {
            (_, 0x7f) => f32::NAN,
            (0, _) => mantissa * 2f32.powi(-9),
            _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
        };
        if code.0 & 0x80 != 0 {
            -magnitude
        } else {
            magnitude
        }
    }
}

impl From<f32> for Bf16 {
    /// Rounds to the nearest, ties to even.
    fn from(value: f32) -> Bf16 {
        let bits = value.to_bits();
        if value.is_nan() {
            return Bf16((bits >> 16) as u16 | 0x40);
        }
        Bf16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16)
    }
}

impl From<Bf16> for f32 {
    fn from(value: Bf16) -> f32 {
        f32::from_bits(u32::from(value.0) << 16)
    }
}

/// What a host tensor may consist of.
///
/// # Safety
/// The type has the size and the representation of `DTYPE`, and every bit pattern is a value.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}
unsafe impl Element for F16 {
    const DTYPE: DType = DType::F16;
}
unsafe impl Element for Bf16 {
    const DTYPE: DType = DType::Bf16;
}
unsafe impl Element for E4m3 {
    const DTYPE: DType = DType::E4M3;
}
unsafe impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
unsafe impl Element for i32 {
    const DTYPE: DType = DType::I32;
}
unsafe impl Element for i64 {
    const DTYPE: DType = DType::I64;
}

/// Where a tensor lies. A run refuses a mixture, and host memory on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    Device,
}

/// A tensor that a run reads.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    pub(crate) raw: sys::nsa_tensor,
    pub(crate) place: Place,
    borrow: PhantomData<&'a ()>,
}

/// A tensor that a run writes.
#[derive(Debug)]
pub struct TensorMut<'a> {
    pub(crate) raw: sys::nsa_tensor,
    pub(crate) place: Place,
    borrow: PhantomData<&'a mut ()>,
}

// Safety: the views stand for a `&[T]` and a `&mut [T]` of plain numbers.
unsafe impl Send for Tensor<'_> {}
unsafe impl Sync for Tensor<'_> {}
unsafe impl Send for TensorMut<'_> {}
unsafe impl Sync for TensorMut<'_> {}

impl<'a> Tensor<'a> {
    /// A contiguous view of host memory, for the CPU device. `data` has exactly the elements of `shape`.
    pub fn new<T: Element>(data: &'a [T], shape: &[usize]) -> Result<Tensor<'a>> {
        let raw = contiguous(data.as_ptr().cast(), data.len(), T::DTYPE, shape)?;
        Ok(Tensor { raw, place: Place::Host, borrow: PhantomData })
    }

    /// The same with strides, in elements. All elements lie in `data`.
    pub fn strided<T: Element>(data: &'a [T], shape: &[usize], stride: &[usize]) -> Result<Tensor<'a>> {
        let raw = strided(data.as_ptr().cast(), data.len(), T::DTYPE, shape, stride)?;
        Ok(Tensor { raw, place: Place::Host, borrow: PhantomData })
    }

    /// A view of device memory.
    ///
    /// # Safety
    /// The memory belongs to the device of the plans that get this tensor, has all elements, and stays
    /// valid and unchanged until the stream has passed the runs.
    pub unsafe fn device(
        data: *const c_void,
        dtype: DType,
        shape: &[usize],
        stride: &[i64],
    ) -> Result<Tensor<'a>> {
        Ok(Tensor { raw: raw(data, dtype, shape, stride)?, place: Place::Device, borrow: PhantomData })
    }
}

impl<'a> TensorMut<'a> {
    /// A contiguous view of host memory, for the CPU device. `data` has exactly the elements of `shape`.
    pub fn new<T: Element>(data: &'a mut [T], shape: &[usize]) -> Result<TensorMut<'a>> {
        let raw = contiguous(data.as_mut_ptr().cast(), data.len(), T::DTYPE, shape)?;
        Ok(TensorMut { raw, place: Place::Host, borrow: PhantomData })
    }

    /// The same with strides, in elements. All elements lie in `data`; a run refuses them if they overlap.
    pub fn strided<T: Element>(
        data: &'a mut [T],
        shape: &[usize],
        stride: &[usize],
    ) -> Result<TensorMut<'a>> {
        let raw = strided(data.as_mut_ptr().cast(), data.len(), T::DTYPE, shape, stride)?;
        Ok(TensorMut { raw, place: Place::Host, borrow: PhantomData })
    }

    /// A view of device memory.
    ///
    /// # Safety
    /// As of [`Tensor::device`]; and nothing else reads or writes the memory until then.
    pub unsafe fn device(
        data: *mut c_void,
        dtype: DType,
        shape: &[usize],
        stride: &[i64],
    ) -> Result<TensorMut<'a>> {
        Ok(TensorMut { raw: raw(data, dtype, shape, stride)?, place: Place::Device, borrow: PhantomData })
    }
}

fn raw(data: *const c_void, dtype: DType, shape: &[usize], stride: &[i64]) -> Result<sys::nsa_tensor> {
    let most = sys::NSA_MAX_DIMS as usize;
    if shape.is_empty() || shape.len() > most {
        return Err(Error::argument(format!("a tensor has 1 to {most} dimensions, not {}", shape.len())));
    }
    if stride.len() != shape.len() {
        return Err(Error::argument(format!("a tensor of shape {shape:?} got the strides {stride:?}")));
    }
    let mut t = sys::nsa_tensor {
        data: data as *mut c_void,
        ndim: shape.len() as i32,
        dtype: dtype as i32,
        ..Default::default()
    };
    for (to, &from) in t.shape.iter_mut().zip(shape) {
        *to = i64::try_from(from)
            .map_err(|_| Error::argument(format!("a tensor of shape {shape:?} is too large")))?;
    }
    t.stride[..stride.len()].copy_from_slice(stride);
    Ok(t)
}

fn contiguous(data: *const c_void, have: usize, dtype: DType, shape: &[usize]) -> Result<sys::nsa_tensor> {
    let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if product(shape) != Some(have) {
        return Err(Error::argument(format!("a tensor of shape {shape:?} got {have} elements")));
    }
    // No stride is too large where there are elements at all.
    let stride: Vec<i64> =
        (0..shape.len()).map(|i| product(&shape[i + 1..]).map_or(0, |n| n as i64)).collect();
    raw(data, dtype, shape, &stride)
}

fn strided(
    data: *const c_void,
    have: usize,
    dtype: DType,
    shape: &[usize],
    stride: &[usize],
) -> Result<sys::nsa_tensor> {
    let last = shape
        .iter()
        .zip(stride)
        .try_fold(0usize, |at, (&d, &s)| at.checked_add(d.saturating_sub(1).checked_mul(s)?));
    let empty = shape.contains(&0);
    if !empty && last.map_or(true, |last| last >= have) {
        return Err(Error::argument(format!(
            "a tensor of shape {shape:?} with strides {stride:?} leaves its {have} elements"
        )));
    }
    let stride: Vec<i64> = stride.iter().map(|&s| s as i64).collect();
    raw(data, dtype, shape, &stride)
}
