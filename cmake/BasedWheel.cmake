# The compiled part of the Python package: _based_ops.abi3.so, which registers torch.ops.based over the kernels. python/pyproject.toml
# configures this; `make wheel` runs it.
#   BASED_WITH_CUDA=ON     with the CUDA kernels and a CUDA runtime, linked statically
#   BASED_WHEEL_ENGINE     a folder of libbased.so and the libraries it needs, which are installed into based_cpp/lib; empty: none
# It links no C++ function of LibTorch, only the C functions of its stable ABI, so the same file works with every torch from 2.10 on. It
# requires glibc 2.28 (manylinux_2_28) and no libstdc++, since users' machines may have older ones than this machine.
set(BASED_WHEEL_ENGINE "" CACHE PATH "Folder of libbased.so, to be installed into the wheel")
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# Only headers of torch are compiled in, those of the torch of this Python unless Torch_DIR or LibTorch_ROOTS says otherwise.
if(NOT Torch_DIR AND NOT DEFINED ENV{Torch_DIR} AND NOT LibTorch_ROOTS)
  execute_process(COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(*(s.submodule_search_locations if s else []))"
    OUTPUT_VARIABLE LibTorch_ROOTS OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
find_package(LibTorch 2.10 REQUIRED)

set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# The kernels' loops run on torch's threads (based/kernels/common/cpu/parallel.h). With OpenMP the wheel would need a libgomp, and a second
# one beside torch's would be a second pool of threads.
add_library(based_openmp INTERFACE)
target_compile_definitions(based_openmp INTERFACE BASED_HOST_THREADS)
target_compile_options(based_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffunction-sections> $<$<COMPILE_LANGUAGE:CXX>:-fdata-sections>)
based_library(based_kernels "based/kernels/*/cpu" DEPENDS based_openmp)
based_simd_sources(based_kernels)

# No system libraries newer than those of manylinux_2_28.
set(_stubs "${CMAKE_BINARY_DIR}/glibc-stubs")
execute_process(COMMAND "${Python_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tools/glibc-stubs" --newest 2.28 --to "${_stubs}"
  COMMAND_ERROR_IS_FATAL ANY)

file(GLOB _sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/csrc/*.cpp")
add_library(_based_ops MODULE ${_sources})
target_link_libraries(_based_ops PRIVATE based_flags based_kernels "${LibTorch_torch_cpu}")
target_include_directories(_based_ops SYSTEM PRIVATE "${LibTorch_INCLUDE_DIR}" ${Python_INCLUDE_DIRS})
target_compile_definitions(_based_ops PRIVATE TORCH_TARGET_VERSION=0x020a000000000000 Py_LIMITED_API=0x030a0000
  BASED_VERSION="${PROJECT_VERSION}")
target_link_options(_based_ops PRIVATE "-L${_stubs}" -static-libstdc++
  "LINKER:--gc-sections,--exclude-libs,ALL,--unresolved-symbols=ignore-in-shared-libs")
set_target_properties(_based_ops PROPERTIES PREFIX "" SUFFIX ".abi3.so" SKIP_BUILD_RPATH ON LINKER_LANGUAGE CXX)
if(BASED_WITH_CUDA)
  include(BasedCuda)
  based_library(based_kernels_cuda "based/kernels/*/cuda" SEPARATE DEPENDS based_cuda_flags)
  target_link_libraries(_based_ops PRIVATE based_kernels_cuda)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" _cuda "${CUDAToolkit_VERSION}")
endif()
target_compile_definitions(_based_ops PRIVATE BASED_CUDA_VERSION="${_cuda}")

install(TARGETS _based_ops LIBRARY DESTINATION based_cpp)
install(FILES LICENSE DESTINATION based_cpp)
if(BASED_WHEEL_ENGINE)
  install(DIRECTORY "${BASED_WHEEL_ENGINE}/" DESTINATION based_cpp/lib USE_SOURCE_PERMISSIONS)
endif()
