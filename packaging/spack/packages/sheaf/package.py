# A recipe for Spack: `spack repo add packaging/spack`, then `spack install sheaf`.
# SHEAF_GIT names the repository.
import os

from spack.package import *

try:  # from Spack 1.0 on the build systems are part of the repository of packages
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
    from spack_repo.builtin.build_systems.cuda import CudaPackage
except ImportError:
    pass


class Sheaf(CMakePackage, CudaPackage):
    """One backend device out of every CPU and GPU of an MPI job: slices tensors over the members,
    runs the slices, and sums where the result needs it."""

    git = os.environ.get("SHEAF_GIT", "https://sheaf.invalid/sheaf.git")
    license("MIT")

    version("main", branch="main")

    variant("nccl", default=False, when="+cuda", description="Collectives between GPUs through NCCL")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")  # nvcc calls it
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3:", type="build")
    depends_on("mpi")
    depends_on("hwloc@2:")
    depends_on("nccl@2.18:", when="+nccl")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("SHEAF_BUILD_TESTS", "OFF"),
            self.define("SHEAF_HARDENING", True),
            self.define("SHEAF_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("SHEAF_NCCL", "ON" if self.spec.satisfies("+nccl") else "OFF"),
        ]
        if self.spec.satisfies("+cuda") and not self.spec.satisfies("cuda_arch=none"):
            architectures = self.spec.variants["cuda_arch"].value
            args.append(self.define("SHEAF_CUDA_ARCHITECTURES", architectures))
        return args
