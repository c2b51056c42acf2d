# LibTorch (the PyTorch C++ library) as imported targets: LibTorch::torch and, where the wheel carries CUDA and it is wanted, LibTorch::cuda.
# Looks in Torch_DIR (the wheel's or the zip's share/cmake/Torch; a variable of CMake or of the environment) and nowhere else where that is
# set, and in the checkout's own virtual environment otherwise.
# TorchConfig.cmake is not used: it stops with an error where a CUDA wheel finds no CUDA toolkit.
if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "share/cmake/Torch of a LibTorch")
endif()
if(Torch_DIR)
  get_filename_component(_torch_roots "${Torch_DIR}/../../.." ABSOLUTE)
else()
  file(GLOB _torch_roots "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
endif()

find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h PATHS ${_torch_roots} PATH_SUFFIXES include NO_DEFAULT_PATH)
foreach(_name torch_cpu c10 torch_cuda c10_cuda)
  find_library(LibTorch_${_name} ${_name} PATHS ${_torch_roots} PATH_SUFFIXES lib NO_DEFAULT_PATH)
endforeach()
set(_version_header "${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h")
if(EXISTS "${_version_header}")
  file(STRINGS "${_version_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]+" "." LibTorch_VERSION "${_lines}")
  string(REGEX REPLACE "^\\.|\\.$" "" LibTorch_VERSION "${LibTorch_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu LibTorch_c10 LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run 'make setup', or pass -DTorch_DIR=<torch>/share/cmake/Torch")

get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_torch_cpu}" DIRECTORY)
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_c10}")
  add_library(LibTorch::torch SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::torch PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu}"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # libtorch_cpu finds its own neighbours; the linker must not insist on the CUDA ones.
  target_link_options(LibTorch::torch INTERFACE "LINKER:--unresolved-symbols=ignore-in-shared-libs")
  if(LibTorch_torch_cuda AND LibTorch_c10_cuda)
    add_library(LibTorch::cuda SHARED IMPORTED GLOBAL)
    set_target_properties(LibTorch::cuda PROPERTIES IMPORTED_LOCATION "${LibTorch_torch_cuda}")
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::torch "${LibTorch_c10_cuda}")
    # Its operators register themselves; no symbol of it need be named for them to be wanted.
    target_link_options(LibTorch::cuda INTERFACE "LINKER:--no-as-needed,${LibTorch_torch_cuda},--as-needed")
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_torch_cpu LibTorch_c10 LibTorch_torch_cuda LibTorch_c10_cuda)
