# `cmake --install`: the program, the library as one shared object, its headers, and a CMake package: find_package(Based) gives Based::based
# and, asked for it, Based::conformance.
# A subproject installs nothing.
if(NOT PROJECT_IS_TOP_LEVEL OR NOT BASED_WITH_TORCH)
  return()
endif()
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# LibTorch is not installed. The loader asks LD_LIBRARY_PATH, then lib/libtorch below the prefix (a link to a LibTorch's lib folder, or a copy),
# wherever the installation has been moved to, then the LibTorch of the build, which for a checkout is in its .venv.
set(_libtorch "${CMAKE_INSTALL_LIBDIR}/libtorch")
file(RELATIVE_PATH _from_bin "/${CMAKE_INSTALL_BINDIR}" "/${_libtorch}")

add_library(based_shared SHARED)
set_target_properties(based_shared PROPERTIES OUTPUT_NAME based EXPORT_NAME based LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib" INSTALL_RPATH "$ORIGIN/libtorch;${LibTorch_LIBRARY_DIR}")
target_link_libraries(based_shared PRIVATE based_experiments)
target_include_directories(based_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_features(based_shared INTERFACE cxx_std_20)
set_target_properties(based PROPERTIES INSTALL_RPATH "$ORIGIN/${_from_bin};${LibTorch_LIBRARY_DIR}")

install(TARGETS based_shared EXPORT BasedTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS based RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(CODE "message(STATUS \"LibTorch is looked for in LD_LIBRARY_PATH, \${CMAKE_INSTALL_PREFIX}/${_libtorch}, ${LibTorch_LIBRARY_DIR}\")")
install(DIRECTORY based DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "cuda" EXCLUDE)

set(_package "${CMAKE_INSTALL_LIBDIR}/cmake/Based")
install(EXPORT BasedTargets NAMESPACE Based:: DESTINATION ${_package})
configure_package_config_file(cmake/BasedConfig.cmake.in "${CMAKE_BINARY_DIR}/BasedConfig.cmake" INSTALL_DESTINATION ${_package}
  PATH_VARS CMAKE_INSTALL_DATADIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/BasedConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/BasedConfig.cmake" "${CMAKE_BINARY_DIR}/BasedConfigVersion.cmake" cmake/FindLibTorch.cmake
  DESTINATION ${_package})
# What Based::conformance is compiled from.
install(FILES tests/mixers/laws.h tests/mixers/laws.cpp tests/mixers/size_laws.cpp tests/mixers/subjects.h tests/mixers/subjects.cpp
  tests/mixers/conformance_test.cpp
  DESTINATION ${CMAKE_INSTALL_DATADIR}/based/tests/mixers)
