// SPDX-FileCopyrightText: 2026 the libnsa authors
// SPDX-License-Identifier: MIT
//
// Finds libnsa.so: in NSA_LIB_DIR, a folder, or else by pkg-config ($PKG_CONFIG, $PKG_CONFIG_PATH).

use std::env;
use std::path::Path;
use std::process::{self, Command};

fn fail(why: &str) -> ! {
    eprintln!(
        "error: {why}\nSet NSA_LIB_DIR to the folder of libnsa.so, or PKG_CONFIG_PATH to that of libnsa.pc."
    );
    process::exit(1)
}

fn by_folder(folder: &str) {
    if !Path::new(folder).join("libnsa.so").exists() {
        fail(&format!("NSA_LIB_DIR is {folder}, which holds no libnsa.so"));
    }
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:rustc-link-lib=dylib=nsa");
}

fn by_pkg_config() {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let version = format!("libnsa >= {}", env!("CARGO_PKG_VERSION"));
    let done = match Command::new(&program).args(["--libs", &version]).output() {
        Ok(done) => done,
        Err(error) => fail(&format!("{program} cannot be started: {error}")),
    };
    if !done.status.success() {
        fail(String::from_utf8_lossy(&done.stderr).trim());
    }
    for word in String::from_utf8_lossy(&done.stdout).split_whitespace() {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(name) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={name}");
        }
    }
    // With a library in one of the linker's own folders there is a -l alone.
}

fn main() {
    for name in ["NSA_LIB_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    match env::var("NSA_LIB_DIR") {
        Ok(folder) => by_folder(&folder),
        Err(_) => by_pkg_config(),
    }
}
