//! The attribute `#[needs(...)]` for tests.
//!
//! A test that lacks something never counts as passed: it is *ignored*, with the missing need as the reason, and the
//! test harness counts and names it. Where `PLIMSOLL_REQUIRE` names the need (`PLIMSOLL_REQUIRE=pytorch,nvrtc`), it
//! fails instead.
//!
//! | need | what it is |
//! |---|---|
//! | `pytorch` | `PLIMSOLL_PYTORCH` names a Python with PyTorch for CUDA |
//! | `transformers`, `accelerate`, `torchvision`, `pytest`, `ipython` | that Python has this package too |
//! | `nvrtc` | that Python has NVIDIA's libraries |
//! | `python3` | any Python 3 on the PATH |
//! | `no_gpu` | this machine has no NVIDIA GPU |
//! | `other_group` | this user can give a file to another group |
//! | `shared_conformance`, `shared_data`, `shared_snapshots` | this folder of `../shared` |
//! | `nightly` | nothing; the test is slow, and runs where `PLIMSOLL_REQUIRE` has `nightly` |

use std::str::FromStr;

use proc_macro::{Delimiter, Group, TokenStream, TokenTree};

/// Each need, what is lacking for it, and whether it is required: see build.rs.
const FOUND: &[(&str, Option<&str>, bool)] = &include!(concat!(env!("OUT_DIR"), "/found.rs"));

/// Names what a test needs: `#[needs(pytorch, transformers)]`, above `#[test]`.
#[proc_macro_attribute]
pub fn needs(needs: TokenStream, test: TokenStream) -> TokenStream {
    let needs = needs.to_string();
    let mut lacks: Vec<(&str, &str, bool)> = Vec::new();
    for need in needs.split(',').map(str::trim) {
        match FOUND.iter().find(|(name, ..)| *name == need) {
            Some(&(name, Some(lack), required)) => lacks.push((name, lack, required)),
            Some(_) => {}
            None => return failure(&format!("no test can need `{need}`"), test),
        }
    }
    if let Some((name, lack, _)) = lacks.iter().find(|&&(.., required)| required) {
        return with_body(
            test,
            &format!("panic!({:?})", format!("PLIMSOLL_REQUIRE names {name}, but {lack}")),
        );
    }
    let Some((name, lack, _)) = lacks.first() else { return test };
    let ignored = format!("#[ignore = {:?}]", format!("needs {name}: {lack}"));
    let mut tokens = parsed(&ignored);
    tokens.extend(test);
    tokens
}

fn parsed(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap_or_default()
}

fn failure(why: &str, test: TokenStream) -> TokenStream {
    let mut tokens = parsed(&format!("compile_error!({why:?});"));
    tokens.extend(test);
    tokens
}

/// The same function with a different body; everything that the test used still counts as used.
fn with_body(test: TokenStream, body: &str) -> TokenStream {
    let mut tokens: Vec<TokenTree> = test.into_iter().collect();
    if let Some(TokenTree::Group(old)) = tokens.pop() {
        let mut inside = parsed(&format!("#[allow(unreachable_code)] {{ {body}; }}"));
        inside.extend(old.stream());
        tokens.push(TokenTree::Group(Group::new(Delimiter::Brace, inside)));
    }
    tokens.into_iter().collect()
}
