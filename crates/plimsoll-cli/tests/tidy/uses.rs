//! Finds which module of a crate uses which: [`Uses`], and the cycles among them.
//!
//! A module uses another if it contains a path to it (`use crate::a::B`, `super::c::d()`, a child's name), or if it calls
//! `self.m()` and `m` is defined in the other module's `impl` of the same type, which no `use` line shows. A re-exported
//! name counts for the module that defines it. `mod` lines, re-exports and test code do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module's path in its crate; the root's is empty.
pub(crate) type Module = Vec<String>;

/// The modules that define a method: by the type's module and name, and the method's name.
type Methods = BTreeMap<(Module, String, String), Vec<Module>>;

/// A name that a `use` line brings into a module.
struct Import {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

/// The names that a module's code mentions.
#[derive(Default)]
struct Code {
    tokens: Vec<String>,
    imports: Vec<Import>,
    /// Paths outside `use` lines.
    paths: Vec<Vec<String>>,
    impls: Vec<Impl>,
}

/// One `impl` block.
struct Impl {
    of: String,
    /// Its functions, if it implements no trait.
    defines: BTreeSet<String>,
    calls: BTreeSet<String>,
}

/// The uses of one crate's modules.
pub(crate) struct Uses {
    modules: BTreeMap<Module, Code>,
    edges: BTreeMap<Module, BTreeMap<Module, String>>,
}

impl Uses {
    /// Reads a crate from its `src` folder.
    pub(crate) fn in_crate(src: &Path) -> Self {
        let mut sources = BTreeMap::new();
        let root = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|root| root.is_file());
        read_module(&root.expect("a crate's root"), src, Vec::new(), &mut sources);
        Self::of(&sources)
    }

    /// Reads the sources of all modules.
    fn of(sources: &BTreeMap<Module, String>) -> Self {
        let read = |(module, text): (&Module, &String)| (module.clone(), Code::read(module, text, sources));
        let mut uses = Self { modules: sources.iter().map(read).collect(), edges: BTreeMap::new() };
        let methods = uses.methods();
        uses.edges =
            uses.modules.keys().map(|module| (module.clone(), uses.edges_from(module, &methods))).collect();
        uses
    }

    /// The modules that a module uses, each with one mention.
    fn edges_from(&self, module: &Module, methods: &Methods) -> BTreeMap<Module, String> {
        let code = &self.modules[module];
        let mut found = BTreeMap::new();
        for import in code.imports.iter().filter(|import| !import.is_public || code.mentions(&import.name)) {
            found.entry(self.resolve(module, &import.path, 0)).or_insert_with(|| import.path.join("::"));
        }
        for path in &code.paths {
            found.entry(self.resolve(module, path, 0)).or_insert_with(|| path.join("::"));
        }
        for block in &code.impls {
            let of = self.resolve(module, std::slice::from_ref(&block.of), 0);
            for call in &block.calls {
                let places = methods.get(&(of.clone(), block.of.clone(), call.clone()));
                if let Some([place]) = places.map(Vec::as_slice) {
                    found.entry(place.clone()).or_insert_with(|| format!("self.{call}()"));
                }
            }
        }
        found.remove(module);
        found
    }

    /// Where the methods of a type are defined: by the type's module and name, and the method's name.
    fn methods(&self) -> Methods {
        let mut methods = Methods::new();
        for (module, code) in &self.modules {
            for block in &code.impls {
                let of = self.resolve(module, std::slice::from_ref(&block.of), 0);
                for method in &block.defines {
                    methods
                        .entry((of.clone(), block.of.clone(), method.clone()))
                        .or_default()
                        .push(module.clone());
                }
            }
        }
        methods
    }

    /// The module that defines the item at `path`, as seen from `from`. Returns `from` itself if the item is not
    /// in this crate.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Module {
        let mut at = from.clone();
        for (nth, segment) in path.iter().enumerate() {
            match segment.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                name => {
                    let child = [&at[..], &[name.to_owned()]].concat();
                    if self.modules.contains_key(&child) {
                        at = child;
                        continue;
                    }
                    let mut imports =
                        self.modules.get(&at).map(|code| code.imports.iter()).into_iter().flatten();
                    let Some(import) = imports.find(|import| import.name == name && depth < 9) else {
                        return at;
                    };
                    let target = self.resolve(&at, &import.path, depth + 1);
                    // If a complete module is imported, the path continues inside it.
                    let is_module =
                        target.last().map(String::as_str) == import.path.last().map(String::as_str);
                    let rest = if is_module { &path[nth + 1..] } else { &[] };
                    return if rest.is_empty() { target } else { self.resolve(&target, rest, depth + 1) };
                }
            }
        }
        at
    }

    /// All uses: the user, the used module, and one place of the use.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&Module, &Module, &str)> {
        let edges = self.edges.iter();
        edges.flat_map(|(from, uses)| uses.iter().map(move |(to, place)| (from, to, place.as_str())))
    }

    /// All modules; the root's path is empty.
    pub(crate) fn modules(&self) -> impl Iterator<Item = &Module> {
        self.modules.keys()
    }

    /// Keeps only the uses for which `counts` holds.
    pub(crate) fn only(mut self, counts: impl Fn(&Module, &Module, &str) -> bool) -> Self {
        for (from, uses) in &mut self.edges {
            uses.retain(|to, place| counts(from, to, place));
        }
        self
    }

    /// The groups of modules that use each other, directly or through others.
    pub(crate) fn cycles(&self) -> Vec<BTreeSet<&Module>> {
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            self.edges.keys().map(|module| (module, self.reach(module))).collect();
        let cycle =
            |module| reach[module].iter().copied().filter(|other| reach[other].contains(module)).collect();
        let cycles: BTreeSet<BTreeSet<&Module>> = reach.keys().map(cycle).collect();
        cycles.into_iter().filter(|cycle| !cycle.is_empty()).collect()
    }

    fn reach<'a>(&'a self, from: &'a Module) -> BTreeSet<&'a Module> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(module) = open.pop() {
            open.extend(self.edges[module].keys().filter(|next| reached.insert(*next)));
        }
        reached
    }
}

impl Code {
    fn read(module: &Module, text: &str, sources: &BTreeMap<Module, String>) -> Self {
        let is_child = |name: &str| sources.contains_key(&[&module[..], &[name.to_owned()]].concat());
        let starts_path = |token: &str| ["crate", "self", "super"].contains(&token) || is_child(token);
        let all = tokens(&without_tests(&plain(text)));
        let mut code = Self { impls: impls(&all), ..Self::default() };
        let mut at = 0;
        while at < all.len() {
            let before = if at == 0 { "" } else { all[at - 1].as_str() };
            if all[at] == "use" && all[at + 1] != "<" {
                let end = at + all[at..].iter().position(|token| token == ";").expect("a use ends");
                let is_public = before == "pub" || before == ")";
                for (path, name) in use_tree(&all[at + 1..end]) {
                    if starts_path(&path[0]) && !(name == "*" && is_public) {
                        code.imports.push(Import { name, path, is_public });
                    }
                }
                at = end;
            } else if starts_path(&all[at])
                && before != "::"
                && before != "in"
                && all.get(at + 1).is_some_and(|next| next == "::")
            {
                let path = all[at..].iter().step_by(2).zip(all[at + 1..].iter().step_by(2));
                let mut path: Vec<String> =
                    path.take_while(|(_, next)| *next == "::").map(|(name, _)| name.clone()).collect();
                path.extend(all.get(at + 2 * path.len()).filter(|last| is_name(last)).cloned());
                code.paths.push(path);
            } else {
                code.tokens.push(all[at].clone());
            }
            at += 1;
        }
        code
    }

    fn mentions(&self, name: &str) -> bool {
        self.tokens.iter().any(|token| token == name)
    }
}

/// The paths of a `use` line and the names that they bring.
fn use_tree(tokens: &[String]) -> Vec<(Vec<String>, String)> {
    let Some(brace) = tokens.iter().position(|token| token == "{") else {
        let names: Vec<String> = tokens.iter().filter(|token| *token != "::").cloned().collect();
        let (path, name) = match names.iter().position(|name| name == "as") {
            Some(nth) => (names[..nth].to_vec(), names[nth + 1].clone()),
            None => (names.clone(), names.last().cloned().unwrap_or_default()),
        };
        let path: Vec<String> = path.into_iter().filter(|name| name != "*").collect();
        return if path.is_empty() { Vec::new() } else { vec![(path, name)] };
    };
    let head: Vec<String> = tokens[..brace].iter().filter(|token| *token != "::").cloned().collect();
    let (mut found, mut depth, mut start) = (Vec::new(), 0, brace + 1);
    for at in brace..tokens.len() {
        depth += i32::from(tokens[at] == "{") - i32::from(tokens[at] == "}");
        if (depth == 1 && tokens[at] == ",") || depth == 0 {
            for (path, name) in use_tree(&tokens[start..at]) {
                let is_self = path == ["self"] && !head.is_empty();
                let name =
                    if is_self && name == "self" { head.last().cloned().unwrap_or_default() } else { name };
                found.push((if is_self { head.clone() } else { [&head[..], &path].concat() }, name));
            }
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// The `impl` blocks among a file's tokens.
fn impls(tokens: &[String]) -> Vec<Impl> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts =
            tokens[at] == "impl" && (at == 0 || ["}", ";", "]", "unsafe"].contains(&tokens[at - 1].as_str()));
        if !starts {
            at += 1;
            continue;
        }
        let open = at + tokens[at..].iter().position(|token| token == "{").expect("an impl has a body");
        // The type's name: the last name outside angle brackets, before `where` and after any `for`.
        let (mut of, mut is_trait, mut angle) = (String::new(), false, 0);
        for token in tokens[at + 1..open].iter().take_while(|token| *token != "where") {
            angle += i32::from(token == "<") - i32::from(token == ">");
            if angle == 0 && token == "for" {
                is_trait = true;
            } else if angle == 0 && is_name(token) {
                of.clone_from(token);
            }
        }
        let mut block = Impl { of, defines: BTreeSet::new(), calls: BTreeSet::new() };
        let (mut depth, mut end) = (0, open);
        loop {
            depth += i32::from(tokens[end] == "{") - i32::from(tokens[end] == "}");
            if depth == 0 {
                break;
            }
            if tokens[end] == "fn" && depth == 1 && !is_trait {
                block.defines.insert(tokens[end + 1].clone());
            }
            if let [owner, dot, name, call] = &tokens[end..(end + 4).min(tokens.len())]
                && ((owner == "self" && dot == ".") || (owner == "Self" && dot == "::"))
                && (call == "(" || call == "::")
            {
                block.calls.insert(name.clone());
            }
            end += 1;
        }
        found.push(block);
        at = end;
    }
    found
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

fn tokens(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let length = if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") || rest.starts_with("->") || rest.starts_with("=>") {
            2
        } else {
            first.len_utf8()
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The code without comments and without the content of literals.
fn plain(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let raw = rest.strip_prefix('r').map(|raw| raw.len() - raw.trim_start_matches('#').len());
        let after_word = code.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let skip = if rest.starts_with("//") {
            rest.find('\n')
        } else if rest.starts_with("/*") {
            rest.find("*/").map(|end| end + 2)
        } else if let Some(hashes) = raw.filter(|&n| rest[1 + n..].starts_with('"') && !after_word) {
            let end = format!("\"{}", "#".repeat(hashes));
            rest[2 + hashes..].find(&end).map(|at| 2 + hashes + at + end.len())
        } else if first == '"' {
            quoted(rest, '"')
        } else if rest.starts_with("'\\") || (first == '\'' && rest.chars().nth(2) == Some('\'')) {
            quoted(rest, '\'')
        } else {
            code.push(first);
            Some(first.len_utf8())
        };
        rest = &rest[skip.unwrap_or(rest.len())..];
    }
    code
}

/// The length of a literal that starts with `quote`.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if c == quote && !escaped {
            return Some(at + 1);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

/// The code without the items that exist only in tests.
fn without_tests(code: &str) -> String {
    let mut kept = String::new();
    let mut rest = code;
    while let Some(at) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..at]);
        let item = &rest[at + "#[cfg(test)]".len()..];
        let mut depth = 0;
        let ends = |c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == ';' || c == '}')
        };
        let end = item.find(ends).map_or(item.len(), |end| end + 1);
        rest = item[end..].trim_start_matches(';');
    }
    kept + rest
}

/// Adds a module and its children.
fn read_module(file: &Path, folder: &Path, module: Module, sources: &mut BTreeMap<Module, String>) {
    let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    for child in children(&text) {
        let (beside, below) = (folder.join(format!("{child}.rs")), folder.join(&child));
        let file = if beside.is_file() { beside } else { below.join("mod.rs") };
        read_module(&file, &below, [&module[..], &[child]].concat(), sources);
    }
    sources.insert(module, text);
}

/// The child modules that do not exist only in tests.
fn children(text: &str) -> Vec<String> {
    let all = tokens(&without_tests(&plain(text)));
    let is_mod = |window: &&[String]| window[0] == "mod" && window[2] == ";";
    all.windows(3).filter(is_mod).map(|window| window[1].clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let path = |name: &str| -> Module {
            name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
        };
        let sources = files.iter().map(|(name, text)| (path(name), (*text).to_owned())).collect();
        let uses = Uses::of(&sources);
        uses.cycles().iter().map(|cycle| cycle.iter().map(|module| module.join("::")).collect()).collect()
    }

    #[test]
    fn two_files_that_name_each_other_are_a_cycle() {
        let found = cycles(&[
            ("", "mod a; mod b;"),
            ("a", "use crate::b::B; pub struct A;"),
            ("b", "use super::a; pub struct B;"),
        ]);
        assert_eq!(found, [["a", "b"]]);
    }

    #[test]
    fn a_name_counts_for_the_file_that_defines_it_and_not_for_those_that_pass_it_on() {
        let root = ("", "mod a; mod b; pub use a::A; pub use b::{B, C};");
        assert_eq!(cycles(&[root, ("a", "pub struct A;"), ("b", "use crate::A; struct B(A);")]).len(), 0);
        let found = cycles(&[root, ("a", "use crate::C; struct A(C);"), ("b", "use crate::A; struct B(A);")]);
        assert_eq!(found, [["a", "b"]]);
    }

    #[test]
    fn a_parent_that_uses_its_childs_type_is_in_a_cycle_with_a_child_that_uses_its() {
        let child = ("a::b", "use super::A; pub struct B(A);");
        assert_eq!(cycles(&[("", "mod a;"), ("a", "mod b; pub use b::B; pub struct A;"), child]).len(), 0);
        let found = cycles(&[("", "mod a;"), ("a", "mod b; pub use b::B; pub struct A(Box<B>);"), child]);
        assert_eq!(found, [["a", "a::b"]]);
    }

    #[test]
    fn a_method_in_another_files_impl_is_a_use_of_that_file() {
        let a = ("a", "pub struct A; impl A { fn low(&self) { self.high() } }");
        let b = ("b", "use crate::a::A; impl A { pub fn high(&self) {} }");
        assert_eq!(cycles(&[("", "mod a; mod b;"), a, b]), [["a", "b"]]);
    }

    #[test]
    fn comments_quotes_and_tests_are_not_uses() {
        let a = "//! crate::b::B\n#[cfg(test)]\nmod tests { use crate::b::B; }\nconst A: &str = \"crate::b::B '\"; const Q: char = '\"';";
        let found = cycles(&[("", "mod a; mod b;"), ("a", a), ("b", "use crate::a::A;")]);
        assert_eq!(found.len(), 0);
    }
}
