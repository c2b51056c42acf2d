# Defines imported targets for LibTorch (the PyTorch C++ library): LibTorch::torch and, if the wheel supports CUDA and the caller needs it,
# LibTorch::cuda.
# If Torch_DIR (the wheel's or the zip's share/cmake/Torch; a CMake or environment variable) is set, only that LibTorch is used. Otherwise it
# is the first of LibTorch_ROOTS (folders with include and lib) that has the required version. LibTorch_ROOTS defaults to the checkout's
# virtual environment.
# TorchConfig.cmake is not used, because with a CUDA wheel it fails if there is no CUDA toolkit.
if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
  set(Torch_DIR "$ENV{Torch_DIR}" CACHE PATH "share/cmake/Torch of a LibTorch")
endif()
set(_torch_advice "pass -DTorch_DIR=<torch>/share/cmake/Torch")
if(Torch_DIR)
  set(_torch_roots "${Torch_DIR}/../../..")
elseif(LibTorch_ROOTS)
  set(_torch_roots ${LibTorch_ROOTS})
else()
  file(GLOB _torch_roots "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch")
  string(PREPEND _torch_advice "run 'make setup', or ")
endif()

# Searched at every configuration and not cached, because a folder of libraries may have moved.
foreach(_variable INCLUDE_DIR torch_cpu c10 torch_cuda c10_cuda VERSION)
  unset(LibTorch_${_variable})
  unset(LibTorch_${_variable} CACHE)
endforeach()
set(_torch_seen "")
foreach(_root IN LISTS _torch_roots)
  get_filename_component(_root "${_root}" ABSOLUTE)
  set(_header "${_root}/include/torch/headeronly/version.h")
  if(NOT EXISTS "${_header}")
    list(APPEND _torch_seen "${_root} (none)")
    continue()
  endif()
  file(STRINGS "${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9]+" "." _version "${_lines}")
  string(REGEX REPLACE "^\\.|\\.$" "" _version "${_version}")
  list(APPEND _torch_seen "${_root} (${_version})")
  if(LibTorch_FIND_VERSION_EXACT AND NOT _version VERSION_EQUAL LibTorch_FIND_VERSION)
    continue()
  endif()
  set(LibTorch_VERSION "${_version}")
  find_path(LibTorch_INCLUDE_DIR torch/csrc/api/include/torch/torch.h PATHS "${_root}/include" NO_DEFAULT_PATH)
  foreach(_name torch_cpu c10 torch_cuda c10_cuda)
    find_library(LibTorch_${_name} ${_name} PATHS "${_root}/lib" NO_DEFAULT_PATH)
  endforeach()
  break()
endforeach()
list(JOIN _torch_seen ", " _torch_seen)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch
  REQUIRED_VARS LibTorch_torch_cpu LibTorch_c10 LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "${_torch_advice}. Looked in: ${_torch_seen}")

get_filename_component(LibTorch_LIBRARY_DIR "${LibTorch_torch_cpu}" DIRECTORY)
if(LibTorch_FOUND AND NOT TARGET LibTorch::torch)
  add_library(LibTorch::c10 SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::c10 PROPERTIES IMPORTED_LOCATION "${LibTorch_c10}")
  add_library(LibTorch::torch SHARED IMPORTED GLOBAL)
  set_target_properties(LibTorch::torch PROPERTIES
    IMPORTED_LOCATION "${LibTorch_torch_cpu}"
    INTERFACE_INCLUDE_DIRECTORIES "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES LibTorch::c10)
  # libtorch_cpu finds its own dependencies at run time; the linker must not require the CUDA libraries.
  target_link_options(LibTorch::torch INTERFACE "LINKER:--unresolved-symbols=ignore-in-shared-libs")
  if(LibTorch_torch_cuda AND LibTorch_c10_cuda)
    add_library(LibTorch::cuda SHARED IMPORTED GLOBAL)
    set_target_properties(LibTorch::cuda PROPERTIES IMPORTED_LOCATION "${LibTorch_torch_cuda}")
    target_link_libraries(LibTorch::cuda INTERFACE LibTorch::torch "${LibTorch_c10_cuda}")
    # Its operators register themselves at start-up, so it must be linked even if no symbol of it is used.
    target_link_options(LibTorch::cuda INTERFACE "LINKER:--no-as-needed,${LibTorch_torch_cuda},--as-needed")
  endif()
endif()
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_torch_cpu LibTorch_c10 LibTorch_torch_cuda LibTorch_c10_cuda)
