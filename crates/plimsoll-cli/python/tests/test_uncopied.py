import os

from plimsoll._predict import uncopied


def test_each_change_names_the_files_that_the_kernel_copies(tmp_path):
    old = tmp_path / "old"
    old.write_text("")
    folder, old, new = str(tmp_path), str(old), str(tmp_path / "new")

    def copied(event, *args):
        return list(uncopied.copied(event, args))

    assert copied("open", old, "r", os.O_RDONLY) == []
    assert copied("open", 3, "w", os.O_WRONLY) == []
    assert copied("open", old, "a", os.O_WRONLY | os.O_APPEND) == [old]
    assert copied("open", new, "w", os.O_WRONLY | os.O_CREAT) == [folder]
    assert copied("os.rename", old, new, -1, -1) == [old, folder, folder]
    assert copied("os.remove", old, -1) == [folder]
    assert copied("os.remove", "old", 5) == []
    assert copied("os.mkdir", new, 0o777, -1) == [folder]
    assert copied("sqlite3.connect", ":memory:") == [":memory:", os.getcwd()]


def test_only_files_of_unknown_owners_are_noted(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    noted = tmp_path / "noted"
    monkeypatch.setattr(uncopied, "FILE", str(noted))
    watch = uncopied.Watch()
    change = ("open", (str(file), "a", os.O_WRONLY))
    watch(*change)
    assert not noted.exists()
    # As if the namespace did not have this process's user.
    monkeypatch.setattr(uncopied, "UNKNOWN", os.getuid())
    watch(*change)
    assert noted.read_text() == f"{file}\n"
    assert not uncopied.is_uncopied("/dev/null")


def test_a_command_names_its_folder_and_the_paths_in_its_words(tmp_path):
    old = tmp_path / "old"
    old.write_text("")
    folder, here = str(tmp_path), os.getcwd()

    def named(event, *args):
        return set(uncopied.named(event, args))

    assert named("os.system", f"cd {folder} && echo x >>{old}".encode()) >= {here, folder, str(old)}
    assert named("subprocess.Popen", "sh", ["cp", "a", "old"], folder, None) == {folder, str(old)}
    assert named("os.exec", "/bin/touch", ["touch", f"{folder}/new"], {}) == {here, folder}


def test_what_a_command_names_is_noted_apart(tmp_path, monkeypatch):
    noted, named = tmp_path / "noted", tmp_path / "named"
    monkeypatch.setattr(uncopied, "FILE", str(noted))
    monkeypatch.setattr(uncopied, "NAMED", str(named))
    monkeypatch.setattr(uncopied, "UNKNOWN", os.getuid())
    uncopied.Watch()("subprocess.Popen", ("sh", ["sh", "-c", "true"], str(tmp_path), None))
    assert not noted.exists() and str(tmp_path) in named.read_text().split()
