// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

use nsa_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::os::raw::c_char;

/// A failed call. Its `Display` is the library's sentence: what was wrong, where, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: i32,
    sentence: String,
    trace: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The status code, one of `nsa::sys::NSA_E_*`.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// The name of the status, as `"NSA_E_ARG"`.
    pub fn name(&self) -> String {
        // Safety: any number is allowed, and the text is static.
        unsafe { text(sys::nsa_status_name(self.status)) }
    }

    /// The internal functions that the failure passed through, for bug reports; empty if it did not reach
    /// the library.
    pub fn trace(&self) -> &str {
        &self.trace
    }

    /// An argument that never reaches the library.
    pub(crate) fn argument(sentence: impl Into<String>) -> Error {
        Error { status: sys::NSA_E_ARG, sentence: sentence.into(), trace: String::new() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl std::error::Error for Error {}

/// The text behind a pointer that C returned; bytes that are no UTF-8 are replaced.
///
/// # Safety
/// `from` is not NULL and ends with a NUL.
pub(crate) unsafe fn text(from: *const c_char) -> String {
    CStr::from_ptr(from).to_string_lossy().into_owned()
}

/// Turns a status into a result. Must follow the call at once, in the same thread: the texts are the thread's.
pub(crate) fn check(status: i32) -> Result<()> {
    if status == sys::NSA_OK {
        return Ok(());
    }
    // Safety: neither returns NULL.
    let (sentence, trace) = unsafe { (text(sys::nsa_last_error()), text(sys::nsa_last_trace())) };
    Err(Error { status, sentence, trace })
}

/// Calls a function that writes a text as snprintf does.
pub(crate) fn written(mut write: impl FnMut(*mut c_char, usize) -> usize) -> String {
    let mut buffer = vec![0u8; write(std::ptr::null_mut(), 0) + 1];
    loop {
        let length = write(buffer.as_mut_ptr().cast(), buffer.len());
        if length < buffer.len() {
            buffer.truncate(length);
            return String::from_utf8_lossy(&buffer).into_owned();
        }
        buffer.resize(length + 1, 0);
    }
}
