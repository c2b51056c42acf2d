# The Debian package, by CPack from the installation (`make deb`). LibTorch is not in it, since the user chooses one of the build's version.
# Its /usr/bin/based is the launcher that finds LibTorch. DebianLayout.cmake arranges the files.
if(NOT PROJECT_IS_TOP_LEVEL OR NOT BASED_WITH_TORCH)
  return()
endif()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME based)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The authors of based <based@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "language models with linear attention and a state of fixed size")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "The program `based` trains, evaluates and serves language models whose memory does not grow with the
sequence. The libraries libbased and libbased_kernels, their headers, a CMake
package and pkg-config files are included. LibTorch ${LibTorch_VERSION} must be installed
separately: /usr/share/doc/based/packages.md.")
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "python3-venv, gnuplot-nox, cmake, pkg-config, nlohmann-json3-dev, libgtest-dev")
# The libraries' Depends. dpkg-shlibdeps only warns of LibTorch's libraries, which have no version in their names.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${CMAKE_BINARY_DIR}/lib")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_STRIP_FILES TRUE)
set(CPACK_PRE_BUILD_SCRIPTS "${CMAKE_CURRENT_LIST_DIR}/DebianLayout.cmake")
# For that script.
set(CPACK_BASED_SOURCE_DIR "${PROJECT_SOURCE_DIR}")
set(CPACK_BASED_LAUNCHER "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/based_launcher")
set(CPACK_BASED_LIBRARY_DIR "${CMAKE_INSTALL_LIBDIR}")
set(CPACK_BASED_LIBTORCH "${LibTorch_LIBRARY_DIR}")
include(CPack)
