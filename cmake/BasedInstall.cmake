# `cmake --install` installs libraries, their headers and a CMake package. find_package(Based) defines
#   Based::kernels      libbased_kernels: the kernels, without torch
#   Based::based        libbased: everything else; links Based::kernels (BASED_WITH_TORCH)
#   Based::conformance  the tests of a mixer, if the component is requested (BASED_WITH_TORCH)
# and pkg-config files define based-kernels and based.
# With BASED_WITH_TORCH the program is installed, too, with its manual page and completion scripts. As a subproject, Based installs nothing.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Based")

# based_shared_library(NAME OUTPUT EXPORT): lib<OUTPUT>.so, as Based::<EXPORT>.
function(based_shared_library name output export)
  add_library(${name} SHARED)
  set_target_properties(${name} PROPERTIES OUTPUT_NAME ${output} EXPORT_NAME ${export} LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
  target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(${name} INTERFACE cxx_std_20)
endfunction()

# Shared: a static library would drop the files that only register their launchers.
based_shared_library(based_kernels_shared based_kernels kernels)
target_link_libraries(based_kernels_shared PRIVATE based_kernels)
set(_kernels_rpath "")
if(BASED_WITH_CUDA)
  target_link_libraries(based_kernels_shared PRIVATE based_kernels_cuda)
  list(APPEND _kernels_rpath "${CUDAToolkit_LIBRARY_DIR}")
endif()
install(TARGETS based_kernels_shared EXPORT BasedKernelsTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT BasedKernelsTargets NAMESPACE Based:: DESTINATION ${_package})

if(BASED_WITH_TORCH)
  # LibTorch is not installed. The loader searches LD_LIBRARY_PATH, then lib/libtorch below the installation's current folder (a link to a
  # LibTorch's lib folder, or a copy), then the LibTorch of the build, which for a checkout is in its .venv.
  set(_libtorch "${CMAKE_INSTALL_LIBDIR}/libtorch")
  file(RELATIVE_PATH _from_bin "/${CMAKE_INSTALL_BINDIR}" "/${_libtorch}")
  list(PREPEND _kernels_rpath "$ORIGIN/libtorch" "${LibTorch_LIBRARY_DIR}")  # for LibTorch's libgomp: one pool of threads

  based_shared_library(based_shared based based)
  set_target_properties(based_shared PROPERTIES BASED_WITHOUT_OBJECTS "based_kernels;based_kernels_cuda"
    INSTALL_RPATH "$ORIGIN;$ORIGIN/libtorch;${LibTorch_LIBRARY_DIR}")
  target_link_libraries(based_shared PRIVATE based_experiments based_c PUBLIC based_kernels_shared)
  set_target_properties(based PROPERTIES INSTALL_RPATH "$ORIGIN/${_from_bin};${LibTorch_LIBRARY_DIR}")

  install(TARGETS based_shared EXPORT BasedTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(TARGETS based RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(CODE "message(STATUS \"LibTorch is looked for in LD_LIBRARY_PATH, \${CMAKE_INSTALL_PREFIX}/${_libtorch}, ${LibTorch_LIBRARY_DIR}\")")
  install(EXPORT BasedTargets NAMESPACE Based:: DESTINATION ${_package})
  install(FILES cmake/FindLibTorch.cmake DESTINATION ${_package})
  install(CODE "set(PROGRAM \"$<TARGET_FILE:based>\")
set(WORK_DIR \"${CMAKE_BINARY_DIR}/documents\")
set(DATA_DIR \"${CMAKE_INSTALL_DATADIR}\")
set(MAN_DIR \"${CMAKE_INSTALL_MANDIR}\")")
  install(SCRIPT cmake/InstallDocuments.cmake)
  # The sources that Based::conformance is compiled from.
  install(FILES tests/mixers/laws.h tests/mixers/laws.cpp tests/mixers/round_laws.cpp tests/mixers/size_laws.cpp tests/mixers/subjects.h tests/mixers/subjects.cpp
    tests/mixers/conformance_test.cpp
    DESTINATION ${CMAKE_INSTALL_DATADIR}/based/tests/mixers)
endif()
set_target_properties(based_kernels_shared PROPERTIES INSTALL_RPATH "${_kernels_rpath}")

install(CODE "set(SOURCE_DIR \"${PROJECT_SOURCE_DIR}\")
set(INCLUDE_DIR \"${CMAKE_INSTALL_INCLUDEDIR}\")
set(WITH_TORCH ${BASED_WITH_TORCH})
set(WITH_CUDA ${BASED_WITH_CUDA})")
install(SCRIPT cmake/InstallHeaders.cmake)
configure_package_config_file(cmake/BasedConfig.cmake.in "${CMAKE_BINARY_DIR}/BasedConfig.cmake" INSTALL_DESTINATION ${_package}
  PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/BasedConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/BasedConfig.cmake" "${CMAKE_BINARY_DIR}/BasedConfigVersion.cmake" DESTINATION ${_package})

# The pkg-config files name the prefix relative to their own folder, so that an installation can be moved.
file(RELATIVE_PATH _from_pkgconfig "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" _from_pkgconfig "${_from_pkgconfig}")
set(_pkgconfig_files based-kernels)
if(BASED_WITH_TORCH)
  list(APPEND _pkgconfig_files based)
endif()
foreach(_file IN LISTS _pkgconfig_files)
  configure_file(cmake/${_file}.pc.in "${CMAKE_BINARY_DIR}/${_file}.pc" @ONLY)
  install(FILES "${CMAKE_BINARY_DIR}/${_file}.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endforeach()
