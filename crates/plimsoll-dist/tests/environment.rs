//! A table of cases: the variables that each launcher sets, and the environment that this crate reads from them.

use plimsoll_dist::{Environment, Launcher, StoreHost};

type Variables = &'static [(&'static str, &'static str)];

fn read(variables: &[(&str, &str)]) -> Result<Option<Environment>, String> {
    let find =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Environment::read(&find).map_err(|error| error.to_string())
}

const TORCHRUN: Variables = &[
    ("TORCHELASTIC_RUN_ID", "job7"),
    ("TORCHELASTIC_RESTART_COUNT", "2"),
    ("TORCHELASTIC_USE_AGENT_STORE", "True"),
    ("RANK", "5"),
    ("WORLD_SIZE", "8"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "4"),
    ("MASTER_ADDR", "node1"),
    ("MASTER_PORT", "29500"),
];
const SLURM: Variables = &[
    ("SLURM_PROCID", "3"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "1"),
    ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
    ("SLURM_STEP_NODELIST", "n[07-08]"),
    ("SLURM_JOB_ID", "1234"),
    ("SLURM_STEP_ID", "5"),
];
const OPEN_MPI: Variables = &[
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "2"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ("PMIX_NAMESPACE", "prterun-host-17@1"),
];
const INTEL_MPI: Variables = &[
    ("PMI_RANK", "2"),
    ("PMI_SIZE", "4"),
    ("MPI_LOCALRANKID", "0"),
    ("MPI_LOCALNRANKS", "2"),
    ("MASTER_ADDR", "10.0.0.1"),
    ("MASTER_PORT", "4000"),
];

#[test]
fn each_launcher_is_known_by_its_variables() {
    let of = |variables| read(variables).expect("an environment").expect("a launcher");
    let facts =
        |e: &Environment| (e.launcher, e.rank, e.size, e.local_rank, e.local_size, e.address.clone(), e.port);
    let torchrun = of(TORCHRUN);
    assert_eq!(facts(&torchrun), (Launcher::Torchrun, 5, 8, 1, 4, "node1".to_owned(), 29_500));
    assert_eq!((torchrun.store_host, &*torchrun.run), (StoreHost::Launcher, "/plimsoll/job7/2/"));
    let slurm = of(SLURM);
    // 20000 + (7 · 1234 + 5) mod 20000
    assert_eq!(facts(&slurm), (Launcher::Slurm, 3, 4, 1, 2, "n07".to_owned(), 28_643));
    assert_eq!(slurm.store_host, StoreHost::FirstRank);
    let open_mpi = of(OPEN_MPI);
    assert_eq!((open_mpi.launcher, open_mpi.rank, &*open_mpi.address), (Launcher::OpenMpi, 1, "127.0.0.1"));
    assert!((20_000..40_000).contains(&open_mpi.port));
    assert_eq!(facts(&of(INTEL_MPI)), (Launcher::Mpich, 2, 4, 0, 2, "10.0.0.1".to_owned(), 4_000));
    let env = of(&[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")]);
    assert_eq!(facts(&env), (Launcher::Env, 1, 2, 1, 2, "a".to_owned(), 1));
}

#[test]
fn without_a_launcher_the_world_is_one_rank() {
    for variables in [
        &[][..],
        &[("RANK", "0")],
        // A batch script, or a program that it starts without srun.
        &[
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_JOB_ID", "3"),
        ],
        &[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "1"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ],
    ] {
        assert_eq!(read(variables), Ok(None), "{variables:?}");
    }
}

#[test]
fn torchrun_under_srun_is_torchrun_and_the_masters_address_wins() {
    // srun starts one torchrun on each of two hosts, so SLURM's ranks are those of torchrun's agents.
    let both: Vec<_> = TORCHRUN.iter().chain(SLURM).copied().collect();
    assert_eq!(read(&both).map(|found| found.map(|found| (found.rank, found.size))), Ok(Some((5, 8))));
    // Only SLURM's rank variables, as in a container that gets only some of the variables.
    let some: Vec<_> = TORCHRUN.iter().chain(&SLURM[..2]).copied().collect();
    assert_eq!(read(&some).map(|found| found.map(|found| (found.rank, found.size))), Ok(Some((5, 8))));
    let named: Vec<_> =
        SLURM.iter().chain(&[("MASTER_ADDR", "other"), ("MASTER_PORT", "77")]).copied().collect();
    assert_eq!(
        read(&named).map(|found| found.map(|found| (found.address, found.port))),
        Ok(Some(("other".to_owned(), 77)))
    );
}

#[test]
fn launchers_that_agree_are_one_and_those_that_disagree_are_named() {
    let pmi = [("PMI_RANK", "3"), ("PMI_SIZE", "4")];
    let agreeing: Vec<_> = SLURM.iter().chain(&pmi).copied().collect();
    assert_eq!(read(&agreeing).map(|found| found.map(|found| found.launcher)), Ok(Some(Launcher::Slurm)));
    let disagreeing: Vec<_> = SLURM.iter().chain(OPEN_MPI).copied().collect();
    assert_eq!(
        read(&disagreeing).unwrap_err(),
        "srun (SLURM_PROCID) says rank 3 of 4, but Open MPI (OMPI_COMM_WORLD_RANK) says rank 1 of 2: start the program with one of \
         them, or unset the variables of the other"
    );
}

#[test]
fn what_is_missing_or_wrong_is_named() {
    let cases: [(Variables, &str); 8] = [
        (
            &[("TORCHELASTIC_RUN_ID", "x"), ("RANK", "0")],
            "torchrun started this process, but WORLD_SIZE is not set",
        ),
        (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK=one is not a number"),
        (&[("RANK", "2"), ("WORLD_SIZE", "2")], "RANK and WORLD_SIZE says rank 2 of 2"),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], "says rank 0 of 0"),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "set MASTER_PORT"),
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("LOCAL_WORLD_SIZE", "1"),
                ("MASTER_PORT", "1"),
            ],
            "set MASTER_ADDR",
        ),
        (&[("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_PORT", "70000")], "MASTER_PORT=70000 is not a port"),
        (
            &[
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_STEP_NODELIST", "n[2-1]"),
                ("SLURM_JOB_ID", "1"),
            ],
            "SLURM_STEP_NODELIST=n[2-1] is not a list of hosts",
        ),
    ];
    for (variables, expected) in cases {
        let error = read(variables).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
