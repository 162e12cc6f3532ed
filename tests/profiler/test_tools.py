"""Finding the profilers of a machine, and what the driver's settings refuse."""

import stat

import pytest

from spec_decode_bench.profiler import tools


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """install(place, version): an nsys in a folder of an otherwise empty machine."""
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(tools, "_FOLDERS", {"nsys": (f"{tmp_path}/opt/nsight-systems/*/bin",)})

    def install(place, version):
        path = tmp_path / place / "nsys"
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\necho 'NVIDIA Nsight Systems version {version}-253135822126v0'\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return install


def test_the_newest_version_in_the_folders_is_taken_and_path_goes_first(machine):
    assert "not found; install it" in tools.find("nsys").problem
    machine("opt/nsight-systems/2024.9.1/bin", "2024.9.1.2")
    newest = machine("opt/nsight-systems/2024.10.2/bin", "2024.10.2.3")
    assert tools.find("nsys") == tools.Tool("nsys", newest, "2024.10.2.3", None)
    in_path = machine("path", "2023.4.1")
    assert tools.find("nsys").path == in_path
    assert tools.find("nsys", newest).version == "2024.10.2.3"
    assert "/nowhere/nsys" in tools.find("nsys", "/nowhere/nsys").problem
