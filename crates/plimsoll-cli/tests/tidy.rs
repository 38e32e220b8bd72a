//! The project's rules that a compiler does not enforce: which crates may depend on which, where unsafe code may be,
//! the maximum length of files, no dead files, no file missing from its crate's table, no file that uses one below it
//! in the table or one that uses it, and no broken links.

mod rooms;
mod uses;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rooms::Rooms;
use uses::Uses;

/// The maximum number of lines of a source file. This includes tests, tables and scripts of fixtures.
const MOST_LINES: usize = 500;

/// Extensions of source files; the shell scripts in `.ci` have none.
const SOURCES: [&str; 9] = [".rs", ".py", ".cu", ".js", ".css", ".sh", ".c", ".cpp", ".h"];

/// The crates that each crate may use, apart from its tests.
const EDGES: [(&str, &[&str]); 12] = [
    ("plimsoll-alloc", &[]),
    ("plimsoll-trace", &["plimsoll-alloc"]),
    ("plimsoll-cuda", &["plimsoll-alloc"]),
    ("plimsoll-kernels", &[]),
    ("plimsoll-dist", &[]),
    (
        "plimsoll-tensor",
        &[
            "plimsoll-alloc",
            "plimsoll-kernels",
            "plimsoll-cuda",
            "plimsoll-gpu",
            "plimsoll-packing",
            "plimsoll-dist",
        ],
    ),
    ("plimsoll", &["plimsoll-tensor", "plimsoll-dist", "plimsoll-trace"]),
    (
        "plimsoll-cli",
        &[
            "plimsoll",
            "plimsoll-alloc",
            "plimsoll-trace",
            "plimsoll-gpu",
            "plimsoll-cuda",
            "plimsoll-standin",
        ],
    ),
    ("plimsoll-gpu", &[]),
    ("plimsoll-needs", &[]),
    ("plimsoll-packing", &[]),
    ("plimsoll-standin", &["plimsoll-gpu"]),
];

/// Where unsafe code may be: the CPU back end, its kernels and its view type; the files that call NVIDIA's libraries;
/// the libraries that C calls; and the test that counts heap calls.
const UNSAFE: [&str; 17] = [
    "plimsoll-kernels/src/",
    "plimsoll-tensor/src/cpu/",
    "plimsoll-tensor/src/view.rs",
    "plimsoll-cuda/src/library.rs",
    "plimsoll-cuda/src/nccl.rs",
    "plimsoll-cuda/src/peers/mod.rs",
    "plimsoll-cuda/src/driver.rs",
    "plimsoll-cuda/src/nvml.rs",
    "plimsoll-cuda/src/nvrtc.rs",
    "plimsoll-cuda/src/blas.rs",
    "plimsoll-cuda/src/dnn/descriptor.rs",
    "plimsoll-cuda/src/pinned.rs",
    "plimsoll-cuda/src/graph.rs",
    "plimsoll-standin/",
    "plimsoll-cli/redirect/",
    "plimsoll-cli/host/",
    "plimsoll-alloc/tests/no_heap.rs",
];

/// The maximum number of unsafe blocks in the tensor crate and its kernels. Kernels that write from several threads
/// need none: `for_each_cut` and its siblings (`parallel.rs`) split their outputs.
const MOST_UNSAFE_BLOCKS: usize = 64;

/// The crates in which not even a folder's own file and a file inside the folder may use each other.
const LAYERED: [&str; 2] = ["plimsoll-alloc", "plimsoll-tensor"];

/// The one of them in which calling a method of the same type in another file counts as a use of that file.
const LAYERED_BY_METHODS: &str = "plimsoll-alloc";

/// The parts of the allocator's state: each with its file and type.
const ALLOCATOR_STATE: [(&str, &str); 8] = [
    ("allocator.rs", "Allocator"),
    ("capture.rs", "Captures"),
    ("heap.rs", "Heap"),
    ("memory_limit.rs", "MemoryLimit"),
    ("pending.rs", "PendingFrees"),
    ("pools.rs", "Pools"),
    ("private.rs", "PrivatePools"),
    ("source.rs", "SegmentSource"),
];

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the workspace")
}

/// Every file below `dir` with this extension, except in hidden folders and build output.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                found.extend(files(&path, ending));
            }
        } else if name.ends_with(ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn short(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[test]
fn crates_use_only_the_crates_below_them() {
    for (name, allowed) in EDGES {
        let manifest = read(&root().join("crates").join(name).join("Cargo.toml"));
        let dependencies = manifest.split("[dependencies]").nth(1).expect("dependencies");
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        let ours = dependencies.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name);
        let ours: Vec<&str> = ours.filter(|dependency| dependency.starts_with("plimsoll")).collect();
        assert_eq!(ours, allowed, "dependencies of {name}");
    }
    let crates = fs::read_dir(root().join("crates")).expect("crates").count();
    assert_eq!(crates, EDGES.len(), "a crate has no line in EDGES");
}

#[test]
fn every_dependency_says_why_it_is_there() {
    for manifest in files(&root().join("crates"), "Cargo.toml") {
        let text = read(&manifest);
        let mut section = "";
        let mut before = "";
        for line in text.lines() {
            if line.starts_with('[') {
                section = line;
            } else if section.contains("dependencies") && line.contains('=') {
                assert!(
                    before.starts_with('#') || line.contains(" # "),
                    "{}: no reason above `{line}`",
                    short(&manifest)
                );
            }
            before = line;
        }
    }
}

#[test]
fn files_stay_short_and_begin_with_their_story() {
    let crates = root().join("crates");
    let mut sources: Vec<PathBuf> = SOURCES.iter().flat_map(|ending| files(&crates, ending)).collect();
    sources.extend(files(&root().join(".ci"), ""));
    for file in sources {
        let text = read(&file);
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{}: {lines} lines; look for the second idea in it", short(&file));
        // Ruff checks that Python files begin with a docstring (`.ci/python`).
        let is_rust = file.extension().is_some_and(|ending| ending == "rs");
        assert!(!is_rust || text.starts_with("//!"), "{}: does not begin with its story", short(&file));
    }
}

#[test]
fn a_test_that_cannot_run_is_ignored_and_never_passes() {
    let said = ["\"skip", "ped: "].concat();
    for name in fs::read_dir(root().join("crates")).expect("the crates").map(|entry| entry.expect("an entry"))
    {
        let tests = name.path().join("tests");
        for file in if tests.is_dir() { files(&tests, ".rs") } else { Vec::new() } {
            let text = read(&file);
            assert!(!text.contains(&said), "{}: says what it lacks with #[needs(...)]", short(&file));
        }
    }
}

#[test]
fn unsafe_code_stays_in_its_places() {
    for file in files(&root().join("crates"), ".rs") {
        let name = short(&file);
        if UNSAFE.iter().any(|place| name.contains(place)) || name.ends_with("tests/tidy.rs") {
            continue;
        }
        let code = read(&file);
        let mut lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found = lines.find(|line| {
            line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl")
        });
        assert_eq!(found, None, "{name}: unsafe code outside its places");
    }
}

#[test]
fn unsafe_blocks_do_not_grow_in_number() {
    let mut blocks = BTreeMap::new();
    let crates = ["crates/plimsoll-kernels/src", "crates/plimsoll-tensor/src"];
    for file in crates.iter().flat_map(|sources| files(&root().join(sources), ".rs")) {
        let code = read(&file);
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let found: usize = lines.map(|line| line.matches("unsafe {").count()).sum();
        if found > 0 {
            blocks.insert(short(&file), found);
        }
    }
    let found: usize = blocks.values().sum();
    assert!(found <= MOST_UNSAFE_BLOCKS, "{found} unsafe blocks: {blocks:#?}");
}

#[test]
fn every_source_file_is_part_of_its_crate() {
    for (name, _) in EDGES {
        let src = root().join("crates").join(name).join("src");
        let mut reached = BTreeSet::new();
        for entry in ["lib.rs", "main.rs"].map(|entry| src.join(entry)) {
            reach(&entry, &mut reached);
        }
        for file in files(&src, ".rs") {
            assert!(reached.contains(&file), "{}: no `mod` leads here", short(&file));
        }
    }
}

#[test]
fn a_crates_table_names_what_is_in_its_folder_and_nothing_else() {
    let mut tables = 0;
    for (name, _) in EDGES {
        let src = root().join("crates").join(name).join("src");
        let Some(mut named) = table(&src.join("lib.rs")).or_else(|| table(&src.join("main.rs"))) else {
            continue;
        };
        let entries = fs::read_dir(&src).expect("a folder").map(|entry| entry.expect("an entry").path());
        let mut there: Vec<String> = entries
            .map(|path| {
                let name =
                    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                if path.is_dir() { format!("{name}/") } else { name }
            })
            .filter(|name| name != "lib.rs" && name != "main.rs")
            .collect();
        named.sort();
        there.sort();
        assert_eq!(named, there, "the table in {name}'s root (left) and its folder (right)");
        tables += 1;
    }
    assert!(tables >= 9, "the tables look different from what this test reads");
}

#[test]
fn modules_have_no_cycles() {
    for name in LAYERED {
        let uses = Uses::in_crate(&root().join("crates").join(name).join("src"));
        let uses = uses.only(|_, _, place| name == LAYERED_BY_METHODS || !place.starts_with("self."));
        if let Some(cycle) = uses.cycles().first() {
            let inside = uses.all().filter(|(from, to, _)| cycle.contains(from) && cycle.contains(to));
            let lines = inside
                .map(|(from, to, place)| format!("  {} uses {} ({place})", from.join("::"), to.join("::")));
            panic!("{name}: a cycle of {} modules\n{}", cycle.len(), lines.collect::<Vec<_>>().join("\n"));
        }
    }
}

#[test]
fn no_two_files_use_each_other_and_none_uses_a_file_below_it_in_a_table() {
    for (name, _) in EDGES {
        let src = root().join("crates").join(name).join("src");
        // A single file needs no order.
        if files(&src, ".rs").len() == 1 {
            continue;
        }
        let rooms = Rooms::of(&src, name == LAYERED_BY_METHODS);
        let (arrows, circles) = (rooms.arrows_up(), rooms.circles());
        assert!(circles.is_empty(), "{name}: {}", circles.join("\n"));
        assert!(arrows.is_empty(), "{name}:\n{}", arrows.join("\n"));
    }
}

#[test]
fn the_parts_of_the_allocators_state_keep_their_fields_to_themselves() {
    for (file, part) in ALLOCATOR_STATE {
        let text = read(&root().join("crates/plimsoll-alloc/src").join(file));
        let starts = |line: &&str| {
            let rest = line.split_once("struct ").filter(|_| line.starts_with("pub")).map(|(_, rest)| rest);
            rest.and_then(|rest| rest.strip_prefix(part))
                .is_some_and(|rest| rest.starts_with(['<', '(', ' ']))
        };
        let first = text.lines().find(starts).unwrap_or_else(|| panic!("{file}: no struct {part}"));
        let in_line = first.split_once(part).is_some_and(|(_, rest)| rest.contains("pub"));
        let mut fields = text.lines().skip_while(|line| line != &first).skip(1);
        let fields = fields.by_ref().take_while(|line| first.ends_with('{') && *line != "}");
        let public: Vec<&str> = fields.filter(|line| line.trim_start().starts_with("pub")).collect();
        assert!(!in_line && public.is_empty(), "{file}: {part} shows {public:?}; give it a method instead");
    }
}

/// The files and folders in the first column of a crate's table, if it has one.
fn table(lib: &Path) -> Option<Vec<String>> {
    Some(rows_of_table(lib)?.concat())
}

/// The rows of that table, each with its files and folders.
fn rows_of_table(lib: &Path) -> Option<Vec<Vec<String>>> {
    let text = if lib.is_file() { read(lib) } else { return None };
    let mut rows = text.lines().skip_while(|line| !line.starts_with("//! | file |"));
    rows.next()?;
    // The row of dashes comes first.
    let cells = rows.skip(1).map_while(|row| row.strip_prefix("//! | ")?.split(" | ").next());
    // Every other piece is text between backticks.
    Some(cells.map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()).collect())
}

/// Adds a file, and the files that its `mod` lines refer to.
fn reach(file: &Path, reached: &mut BTreeSet<PathBuf>) {
    if !file.is_file() || !reached.insert(file.to_path_buf()) {
        return;
    }
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = file.parent().expect("a folder");
    let below = if ["lib", "main", "mod"].contains(&stem.as_str()) {
        folder.to_path_buf()
    } else {
        folder.join(stem)
    };
    let mut path = None;
    for line in read(file).lines().map(str::trim) {
        if let Some(named) = line.strip_prefix("#[path = \"") {
            path = named.split('"').next().map(|named| folder.join(named));
        }
        let module = line
            .trim_start_matches("pub(crate) ")
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        if let Some(module) = module.strip_prefix("mod ").and_then(|module| module.strip_suffix(';')) {
            match path.take() {
                Some(path) => reach(&path, reached),
                None => {
                    reach(&below.join(format!("{module}.rs")), reached);
                    reach(&below.join(module).join("mod.rs"), reached);
                }
            }
        }
    }
}

#[test]
fn links_in_documents_lead_somewhere() {
    for document in files(&root(), ".md") {
        let text = read(&document);
        // Only links to files: the text from `](` to `)`, if it has no scheme, and without the part after
        // `#`.
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            let target = link.split('#').next().unwrap_or_default();
            let path = document.parent().expect("a folder").join(target);
            assert!(path.exists(), "{}: the link to {link} leads nowhere", short(&document));
        }
    }
}
