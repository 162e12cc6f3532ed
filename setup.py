"""Installed, the folders of code are packages of spec_decode_bench, the one top-level name that the suite takes."""

import sys
from runpy import run_path

from setuptools import find_packages, setup

if "editable_wheel" in sys.argv:  # of pip install -e: this module finds the folders beside it, as in a clone
    setup(py_modules=["spec_decode_bench"])
else:
    folders = run_path("harness/import_by_content.py")["PACKAGES"]
    packages = find_packages(include=[name for folder in folders for name in (folder, f"{folder}.*")])
    setup(
        package_dir={"spec_decode_bench": "."},
        packages=[f"spec_decode_bench.{name}" for name in (*packages, "configs")],
        py_modules=["spec_decode_bench", "spec_decode_bench.bench"],
    )
