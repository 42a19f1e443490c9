"""The tests mirror the tree: every module has a file of tests, and every file of tests a module or a behaviour.

``fastflow/<folder>/<name>.py`` is tested by ``tests/<folder>/test_<name>.py``, ``kernels/<folder>/<name>.py`` by
``tests/kernels/test_<folder>_<name>.py``, ``train/`` and ``bench/`` likewise. A further file on one aspect of a module
adds a word to the name. Modules that keep one law are subjects of one file, a contract. Behaviours of many modules are
in ``tests/across``, and what happens to them if disk, memory, clock or process fail in ``tests/faults``.
"""

from pathlib import Path

from support.places import ROOT, TESTS

ROOMS = {"fastflow": "", "kernels": "kernels", "train": "train", "bench": "bench"}
DRY = "runs on a GPU alone; bench/gpu.sh runs it, and across/test_gpu_script.py runs that dry"
INTERPRETED = "a body of Triton, executed by triton_interpret/check_*.py in a process of its own"
UNTESTED = {  # module -> why it has no file of its own
    "fastflow/files/checks.py": "a table of what each command refuses: commands/test_refusals.py",
    "fastflow/files/write/growing.py": "part of the contract of every run: files/test_run.py",
    "fastflow/commands/options.py": "declarations alone: commands/test_embed.py and test_measure.py use each option",
    "fastflow/types.py": "types alone: across/test_types.py checks them and has mypy read a caller",
    "fastflow/search/source.py": "an interface, without a body: search/test_database.py and test_matrix.py",
    "kernels/encoder/triton_bodies.py": INTERPRETED,
    "kernels/flow/triton_bodies.py": INTERPRETED,
    "kernels/flow/triton_parts.py": INTERPRETED,
    "bench/measure/probe_gpu.py": DRY,
    "bench/suites/encoder_gpu.py": DRY,
    "bench/suites/end_to_end_gpu.py": DRY,
    "bench/suites/sizes.py": "a table of numbers",
}
CONTRACTS = {  # a file of tests -> the modules, or their folders, whose laws it states once
    "backends/test_base.py": ("fastflow/backends/info.py",),
    "backends/test_gpu.py": ("fastflow/backends/gpu/",),
    "backends/test_reference.py": ("fastflow/backends/torch.py",),
    "backends/test_table.py": ("fastflow/backends/torch_table.py",),
    "backends/test_trials.py": ("fastflow/cache_folder.py",),
    "bench/test_cli.py": ("bench/every.py",),
    "bench/test_measure.py": ("bench/measure/", "bench/suites/burst.py"),
    "bench/test_peers_encoder.py": tuple(
        f"bench/peers/{name}.py" for name in ("gpu", "onnx", "pooled", "pytorch", "text_engines")
    ),
    "bench/test_peers_flow.py": ("bench/peers/folded.py", "bench/peers/port.py"),
    "bench/test_report.py": ("bench/report/",),
    "bench/test_suites_encoder.py": tuple(
        f"bench/suites/{name}.py" for name in ("end_to_end", "serve", "startup", "texts", "workbench")
    ),
    "bench/test_suites_flow.py": tuple(
        f"bench/suites/{name}.py" for name in ("candidates_flow", "flow_limits", "workloads")
    ),
    "exports/test_export.py": ("fastflow/exports/", "fastflow/commands/export.py"),
    "evaluation/test_with_st.py": ("fastflow/evaluation/agreement.py",),
    "exports/test_onnx.py": ("fastflow/evaluation/with_onnx.py",),
    "evaluation/test_tasks.py": tuple(f"fastflow/evaluation/{name}.py" for name in ("draws", "results", "rows")),
    "kernels/test_encoder_cpu_layout.py": ("kernels/encoder/cpu_layers.py",),
    "kernels/test_encoder_reference.py": tuple(
        f"kernels/encoder/{name}.py" for name in ("distances", "shape", "texts")
    ),
    "kernels/test_flow_plan.py": ("kernels/flow/equations.py",),
    "kernels/test_isa.py": ("kernels/threads.py",),
    "kernels/test_search.py": ("kernels/search/",),
    "kernels/test_tokens.py": ("kernels/tokens/",),
    "kernels/test_table.py": ("kernels/table/",),
    "kernels/test_embed.py": ("kernels/embed/",),
    "kernels/test_triton.py": ("kernels/launch.py", "kernels/encoder/triton", "kernels/flow/triton"),
    "model/test_refusals_model.py": ("fastflow/model/",),
    "model/test_sharing.py": ("fastflow/commands/hub.py",),
    "plan/test_fold.py": ("fastflow/plan/",),
    "report/test_page.py": ("fastflow/report/",),
    "serve/test_routes.py": ("fastflow/serve/",),
    "train/test_distil_run.py": (
        "fastflow/commands/distill.py",
        "train/distil/python.py",
        "train/distil/result.py",
    ),
    "stages/test_rows.py": ("fastflow/stages/similarity.py",),
    "train/test_choice_separability.py": ("train/choice/held_out.py",),
    "train/test_data_sharded.py": ("train/data/moments.py",),
    "train/test_methods_chain.py": ("train/methods/against.py", "train/methods/names.py", "train/methods/scalars.py"),
    "train/test_methods_loop.py": ("train/methods/checkpoints.py", "train/methods/objective.py"),
    "train/test_options.py": ("train/setting.py",),
    "train/test_run.py": ("train/progress.py", "train/reading.py"),
    "train/test_ship_export.py": ("train/ship/proof.py",),
    "train/test_ship_fit.py": ("train/ship/likelihood.py", "train/ship/precision.py", "train/ship/card.py"),
}
BEHAVIOURS = {
    *("bench/test_results.py", "commands/test_refusals.py", "serve/test_routes_guard.py", "serve/test_routes_load.py"),
    *(f"model/test_refusals_{subject}.py" for subject in ("encoder", "sentence", "static", "tokenizer")),
    "test_mirror.py",
}


def contract_of(module: str) -> str | None:
    return next((file for file, subjects in CONTRACTS.items() if module.startswith(subjects)), None)


def modules() -> dict[str, str]:
    """Module -> its file of tests, both by their paths; bench/research is scripts, tested where they compute."""
    found = {}
    for room, folder in ROOMS.items():
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.name == "__init__.py":
                continue
            parts = list(path.relative_to(ROOT / room).with_suffix("").parts)
            where = [folder] if folder else parts[:1] * (len(parts) > 1)
            rest = parts if folder or len(parts) == 1 else parts[1:]
            found[path.relative_to(ROOT).as_posix()] = "/".join([*where, f"test_{'_'.join(rest)}.py"])
    return found


MODULES = modules()


def test_every_module_has_its_tests():
    wanted = [name for name in MODULES if "/research/" not in name and name not in UNTESTED]
    without = [f"tests/{MODULES[m]}" for m in wanted if not ((TESTS / MODULES[m]).is_file() or contract_of(m))]
    assert without == [], "missing"
    assert [name for name in UNTESTED if (TESTS / MODULES[name]).is_file()] == [], "take them off the list"


def files() -> list[str]:
    return sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def test_every_file_of_tests_is_named_after_a_module():
    named = {where.removesuffix(".py") for where in MODULES.values()}
    alone = {file for file in files() if not file.startswith(("across/", "faults/"))} - BEHAVIOURS - set(CONTRACTS)
    of_none = [f for f in alone if not any(f"{f.removesuffix('.py')}_".startswith(f"{name}_") for name in named)]
    assert of_none == [], "no module has these names; behaviours of many modules go into tests/across"


def test_the_lists_are_exact():
    assert set(UNTESTED) <= set(MODULES)
    assert set(files()) >= BEHAVIOURS | set(CONTRACTS)
    for subjects in CONTRACTS.values():
        for subject in subjects:
            alone = [name for name in MODULES if name.startswith(subject) and not (TESTS / MODULES[name]).is_file()]
            assert alone, f"{subject} has tests of its own now: take it off the list"
    assert len({where for name, where in MODULES.items()}) == len(MODULES) > 130
    assert Path(__file__).name in BEHAVIOURS
