# CUDA is chosen by folder: based/kernels/cuda/*.cu and based/ops/cuda/*.cpp are compiled with BASED_WITH_CUDA and not looked at without it;
# then based/ops/without_cuda and based/decode/without_cuda say that there is none.
# Hopper's own instructions (wgmma, TMA) need the "a" architecture, which no later GPU runs; sm_80 and its PTX serve every other one.
set(CMAKE_CUDA_ARCHITECTURES OFF)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(BASED_NVCC nvcc PATHS /usr/local/cuda/bin)
  if(NOT BASED_NVCC)
    message(FATAL_ERROR "BASED_WITH_CUDA=ON needs nvcc: install the CUDA toolkit 13, or set CUDACXX to its nvcc")
  endif()
  set(CMAKE_CUDA_COMPILER "${BASED_NVCC}")
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
# CMake 3.25 knows nvcc up to C++17 only; this is how it would say C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD_LATEST 20)
endif()
add_library(based_cuda_flags INTERFACE)
target_compile_options(based_cuda_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
  -gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=[sm_80,compute_80] --expt-relaxed-constexpr -lineinfo>)
target_link_libraries(based_cuda_flags INTERFACE CUDA::cudart)
if(BASED_RACECHECK)
  target_compile_definitions(based_cuda_flags INTERFACE BASED_RACECHECK)
endif()
