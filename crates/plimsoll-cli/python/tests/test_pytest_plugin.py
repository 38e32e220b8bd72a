# The plugin in separate sessions, which run in their own processes because they import PyTorch.


import pytest

TESTS = """
import pytest, torch

@pytest.mark.memory(peak_below="100MiB")
def test_little():
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.memory(peak_below="100MiB")
def test_much():
    def make():
        return torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    kept = make()

@pytest.mark.memory(reserved_below="10MiB", peak_below="1GiB")
def test_reserves():
    torch.empty(64 << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.memory(peak_below="1GiB")
def test_fails_for_another_reason():
    assert 1 == 2

class TestClass:
    @pytest.mark.memory(peak_below="1GiB")
    @pytest.mark.parametrize("size", [1, 2000])
    def test_sizes(self, size):
        torch.empty(size << 20, dtype=torch.uint8, device="cuda")

def test_without_a_mark():
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
"""


def has_gpu():
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available()


def run(pytester, *arguments):
    return pytester.runpytest_subprocess("-p", "plimsoll.pytest_plugin", "-p", "no:cacheprovider", *arguments)


def test_a_test_above_its_limit_fails_with_the_peak_and_its_owners(pytester):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    pytester.makepyfile(test_it=TESTS)
    result = run(pytester)
    result.assert_outcomes(passed=3, failed=4)
    result.stdout.fnmatch_lines(
        [
            "GPU 0: at most 200.00 MiB were allocated; the limit is 100.00 MiB (100.00 MiB too much)",
            "allocated at the peak, by category and line:",
            "*200.00 MiB *test_it.py:10 make *return torch.empty(200 << 20*",
            "GPU 0: at most 64.00 MiB were reserved; the limit is 10.00 MiB (54.00 MiB too much)",
            "*assert 1 == 2*",
        ]
    )


def test_memory_from_before_the_test_counts_and_is_named(pytester):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    pytester.makepyfile(
        test_it="""
        import pytest, torch

        @pytest.fixture(scope="module")
        def kept():
            return torch.empty(300 << 20, dtype=torch.uint8, device="cuda")

        @pytest.mark.memory(peak_below="256MiB")
        def test_it(kept):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        """
    )
    result = run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["300.00 MiB of them were allocated before the test"])


def test_a_unittest_case_may_have_a_mark(pytester):
    if not has_gpu():
        pytest.skip("no CUDA GPU, and not on the stand-in")
    pytester.makepyfile(
        test_it="""
        import pytest, torch, unittest

        class Case(unittest.TestCase):
            @pytest.mark.memory(peak_below="1MiB")
            def test_it(self):
                torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
        """
    )
    run(pytester).assert_outcomes(failed=1)


def test_without_a_gpu_the_test_is_skipped_and_the_reason_says_so(pytester, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.memory(peak_below="1MiB")
        def test_it():
            assert False
        """
    )
    result = run(pytester, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines_random(["*SKIPPED*plimsoll predict --gpu NAME --whole -- pytest*"])


@pytest.mark.parametrize(
    "mark, said",
    [
        ("", "expected peak_below=SIZE"),
        ("'6GiB'", "expected peak_below=SIZE"),
        ("peak='6GiB'", "expected peak_below=SIZE"),
        ("peak_below='six'", "'six' is not a size"),
    ],
)
def test_a_mark_that_is_not_understood_fails_its_test_and_no_other(pytester, mark, said):
    pytester.makepyfile(
        test_it=f"import pytest\n@pytest.mark.memory({mark})\ndef test_it(): pass\ndef test_other(): pass\n"
    )
    result = run(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines([f"@pytest.mark.memory: *{said}*"])
    result.stdout.no_fnmatch_line("*another exception*")


def test_the_mark_is_registered(pytester):
    result = run(pytester, "--markers")
    result.stdout.fnmatch_lines(["@pytest.mark.memory(peak_below=SIZE*"])
