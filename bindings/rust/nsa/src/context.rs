// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT

use crate::error::{check, text, written, Error, Result};
use crate::plan::Plan;
use nsa_sys as sys;
use std::ffi::CString;
use std::os::raw::{c_char, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;
use std::sync::Arc;

/// The model: `Model { heads: 64, kv_heads: 4, head_dim_qk: 128, ..Default::default() }`. Zero is the
/// default of every field; `include/nsa/context.h` documents them.
pub type Model = sys::nsa_model;

/// What is computed, by capacity: `Problem { max_tokens: 4096, ..Default::default() }`. Zero is the default
/// of every field; `include/nsa/problem.h` documents them.
pub type Problem = sys::nsa_problem;

/// Receives a line of the log: its level (`sys::NSA_LOG_*`), the part of the library that speaks, and the
/// text. Any thread may call it. It must not call libnsa.
pub type Log = dyn Fn(i32, &str, &str) + Send + Sync;

/// Reports the progress of a slow call: done, total, and the piece. `false` cancels the call.
pub type Progress<'a> = dyn FnMut(i64, i64, &str) -> bool + 'a;

/// What a context is made from. The model comes from here, from a file or from a text.
#[derive(Default)]
pub struct Options<'a> {
    /// A configuration file.
    pub file: Option<&'a Path>,
    /// A configuration, laid over the file's.
    pub yaml: Option<&'a str>,
    pub model: Option<Model>,
    /// `"cpu"`, `"cuda:1"`, a PCI bus id or a UUID; `None`: that of the configuration.
    pub device: Option<&'a str>,
    /// Compile for this architecture, `"sm_90a"`, without a device.
    pub arch: Option<&'a str>,
    /// `"runtime.jit=never"`: stronger than all else.
    pub overrides: &'a [&'a str],
    /// `sys::NSA_LOG_*`, or `sys::NSA_NONE` for silence; 0: that of the configuration.
    pub log_level: i32,
    /// `None`: lines go to stderr.
    pub log: Option<Arc<Log>>,
}

/// The callback of a log, at an address that stays. Plans hold it, too.
pub(crate) struct Logger(Arc<Log>);

extern "C" fn log_line(user: *mut c_void, level: i32, component: *const c_char, line: *const c_char) {
    // Safety: `user` is the Logger of nsa_create, which outlives the context and its plans.
    let (logger, component, line) = unsafe { (&*(user as *const Logger), text(component), text(line)) };
    // A panic must not pass through C, and nobody waits for it behind a log.
    let _ = catch_unwind(AssertUnwindSafe(|| (logger.0)(level, &component, &line)));
}

/// A model and a configuration on one device. Threads may share it. Plans stay valid when it goes.
pub struct Context {
    raw: *mut sys::nsa_ctx,
    logger: Option<Arc<Logger>>,
    checks_inputs: bool, // runtime.check_inputs is not off
}

// Safety: every call on an nsa_ctx but nsa_destroy is thread-safe, and Drop has it alone.
unsafe impl Send for Context {}
unsafe impl Sync for Context {}

pub(crate) fn c_string(what: &str, from: &str) -> Result<CString> {
    CString::new(from).map_err(|_| Error::argument(format!("{what} contains a NUL: {from:?}")))
}

impl Context {
    /// Makes a context: `nsa_create`.
    pub fn new(options: &Options) -> Result<Context> {
        let file = match options.file {
            Some(path) => match path.to_str() {
                Some(path) => Some(c_string("the path of the configuration", path)?),
                None => return Err(Error::argument(format!("the path {path:?} is no UTF-8"))),
            },
            None => None,
        };
        let given = |what, value: Option<&str>| value.map(|value| c_string(what, value)).transpose();
        let yaml = given("the configuration", options.yaml)?;
        let device = given("the device", options.device)?;
        let arch = given("the architecture", options.arch)?;
        let overrides: Vec<CString> =
            options.overrides.iter().map(|text| c_string("an override", text)).collect::<Result<_>>()?;
        let mut override_list: Vec<*const c_char> = overrides.iter().map(|text| text.as_ptr()).collect();
        override_list.push(ptr::null());
        // Whatever the caller wrote there, the library must not read beyond the struct.
        let model = options.model.map(|model| Model { struct_size: Model::default().struct_size, ..model });
        let logger = options.log.clone().map(|log| Arc::new(Logger(log)));
        let pointer = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());

        let mut raw_options = sys::nsa_options {
            log_level: options.log_level,
            model: model.as_ref().map_or(ptr::null(), |model| model),
            device: pointer(&device),
            arch: pointer(&arch),
            yaml_text: pointer(&yaml),
            overrides: override_list.as_ptr(),
            ..Default::default()
        };
        if let Some(logger) = &logger {
            raw_options.log = Some(log_line);
            raw_options.log_user = Arc::as_ptr(logger) as *mut c_void;
        }
        let mut raw = ptr::null_mut();
        // Safety: all that the options point to lives until the call returns, the logger for longer.
        check(unsafe { sys::nsa_create(pointer(&file), &raw_options, &mut raw) })?;
        let mut ctx = Context { raw, logger, checks_inputs: true };
        ctx.checks_inputs = !ctx.config(false).lines().any(|line| line.trim() == "check_inputs: off");
        Ok(ctx)
    }

    /// Makes a plan: chooses, compiles and loads. This is the slow call.
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        self.plan_with_progress(problem, &mut |_, _, _| true)
    }

    /// The same, and reports what it does. A panic of `progress` cancels the call and goes on behind it.
    pub fn plan_with_progress(&self, problem: &Problem, progress: &mut Progress) -> Result<Plan> {
        let problem = sized(problem);
        let mut call = ProgressCall { progress, panic: None };
        let mut raw = ptr::null_mut();
        // Safety: the pointers are valid during the call, and `report` gets what it expects.
        let status = unsafe {
            let user = &mut call as *mut ProgressCall as *mut c_void;
            sys::nsa_plan_create(self.raw, &problem, Some(report), user, &mut raw)
        };
        let made = check(status);
        if let Some(panic) = call.panic {
            // Safety: whoever made it gave it away. NULL is fine.
            unsafe { sys::nsa_plan_destroy(raw) };
            std::panic::resume_unwind(panic);
        }
        made?;
        // Safety: a plan that was just made, and has no other owner.
        unsafe { Plan::new(raw, self.logger.clone(), self.checks_inputs) }
    }

    /// Why a problem is served as it is.
    pub fn explain(&self, problem: &Problem) -> String {
        let problem = sized(problem);
        // Safety: `written` passes a buffer and its size.
        written(|buffer, size| unsafe { sys::nsa_explain(self.raw, &problem, buffer, size) })
    }

    /// The effective configuration as YAML, with where each value came from if `with_origin`.
    pub fn config(&self, with_origin: bool) -> String {
        // Safety: as above.
        written(|buffer, size| unsafe { sys::nsa_config_dump(self.raw, with_origin as i32, buffer, size) })
    }

    /// Bytes of one page of a cache in one layer.
    pub fn kv_page_bytes(&self, problem: &Problem) -> Result<u64> {
        let (problem, mut bytes) = (sized(problem), 0);
        // Safety: both are valid during the call.
        check(unsafe { sys::nsa_kv_page_bytes(self.raw, &problem, &mut bytes) })?;
        Ok(bytes)
    }

    /// The handle, for calls of `nsa::sys` that this crate does not have.
    pub fn as_ptr(&self) -> *mut sys::nsa_ctx {
        self.raw
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Safety: nobody else uses it: `self` is borrowed alone. The logger goes after it.
        unsafe { sys::nsa_destroy(self.raw) };
    }
}

/// The problem with the size of its struct, whatever the caller wrote there.
fn sized(problem: &Problem) -> Problem {
    Problem { struct_size: Problem::default().struct_size, ..*problem }
}

struct ProgressCall<'a, 'b> {
    progress: &'a mut Progress<'b>,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

extern "C" fn report(user: *mut c_void, done: i64, total: i64, what: *const c_char) -> i32 {
    // Safety: `user` is the ProgressCall of plan_with_progress, in the thread that waits for this.
    let (call, what) = unsafe { (&mut *(user as *mut ProgressCall), text(what)) };
    match catch_unwind(AssertUnwindSafe(|| (call.progress)(done, total, &what))) {
        Ok(go_on) => !go_on as i32,
        Err(panic) => {
            call.panic = Some(panic);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reports_cancels_and_keeps_a_panic() {
        let mut seen = Vec::new();
        let mut progress = |done: i64, total: i64, what: &str| {
            seen.push(format!("{done}/{total} {what}"));
            assert!(done < 3, "three");
            done < 2
        };
        let mut call = ProgressCall { progress: &mut progress, panic: None };
        let user = &mut call as *mut ProgressCall as *mut c_void;
        let what = c_string("a test", "piece").unwrap();
        assert_eq!(report(user, 1, 4, what.as_ptr()), 0);
        assert_eq!(report(user, 2, 4, what.as_ptr()), 1);
        assert_eq!(report(user, 3, 4, what.as_ptr()), 1);
        let panic = call.panic.take().expect("the panic is kept");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"three"));
        assert_eq!(seen, ["1/4 piece", "2/4 piece", "3/4 piece"]);
    }
}
