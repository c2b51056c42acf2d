add_library(based_flags INTERFACE)
target_include_directories(based_flags INTERFACE "${PROJECT_SOURCE_DIR}")
set(_warnings -Wall -Wextra -Wshadow -Wno-unknown-pragmas)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND _warnings -Wno-restrict)  # GCC bug 105651: "a" + std::string() is taken for an overlapping copy
endif()
target_compile_options(based_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${_warnings};-Wpedantic>"
                                             "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(BASED_WERROR)
  target_compile_options(based_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror> $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  # std::vector<bool>::reserve(), which each autograd function of LibTorch calls, is falsely said to copy beyond its end. A precompiled header
  # that cannot be used costs time only.
  target_compile_options(based_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds;-Wno-error=invalid-pch>")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    # On from -O2. Sources compiled with -O1 can use the precompiled header only if they set it too; it has no effect there.
    target_compile_options(based_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-munroll-only-small-loops>)
  endif()
endif()
if(BASED_SANITIZE)
  target_compile_options(based_flags INTERFACE -fsanitize=${BASED_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  target_link_options(based_flags INTERFACE -fsanitize=${BASED_SANITIZE})
  if(BASED_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(based_flags INTERFACE -Wno-tsan)  # Boost.Asio has fences, which ThreadSanitizer does not follow
  endif()
endif()
if(BASED_WITH_FUZZERS)
  target_compile_options(based_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

# A source that includes LibTorch takes 4 s to compile before its first own line, because gcc repeats the pending template instantiations of
# the precompiled header in each object; other sources repeat their headers. Sources that are compiled together share this cost, but also their
# anonymous namespaces.
function(based_unity target)
  if(BASED_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 52)
  endif()
endfunction()

# based_link_objects(NAME OBJECTS): a target that links NAME also links the objects of the library OBJECTS. A target whose property
# BASED_WITHOUT_OBJECTS lists NAME does not: it links a shared library that has them.
function(based_link_objects name objects)
  target_sources(${name} INTERFACE
    $<$<NOT:$<IN_LIST:${name},$<TARGET_PROPERTY:BASED_WITHOUT_OBJECTS>>>:$<TARGET_OBJECTS:${objects}>>)
endfunction()

# based_library(NAME FOLDERS [DEPENDS ...] [TORCH] [SEPARATE]): an object library of every .cpp (and .cu) in each FOLDER below the current one;
# `*` matches any folder. Files are found by folder, so that a new operator or mixer needs no change of a list. The libraries are object
# libraries, because the linker drops files of a static library that are used only through their registration. A target that links NAME also
# links its objects and those of all its dependencies. SEPARATE: each source is compiled separately, even with BASED_UNITY.
function(based_library name folders)
  cmake_parse_arguments(ARG "TORCH;SEPARATE" "" "DEPENDS" ${ARGN})
  set(sources "")
  foreach(folder IN LISTS folders)
    file(GLOB found CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp" "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cu")
    list(APPEND sources ${found})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "\\.simd\\.cpp$")
  if(NOT sources)
    add_library(${name} INTERFACE)
    set(scope INTERFACE)
  else()
    add_library(${name} OBJECT ${sources})
    set(scope PUBLIC)
  endif()
  target_link_libraries(${name} ${scope} based_flags ${ARG_DEPENDS})
  if(sources)
    based_link_objects(${name} ${name})
    if(NOT ARG_SEPARATE)
      based_unity(${name})
    endif()
  endif()
  if(ARG_TORCH)
    target_link_libraries(${name} ${scope} LibTorch::torch)
    if(sources)
      target_precompile_headers(${name} REUSE_FROM based_torch_pch)
    endif()
  endif()
endfunction()

# based_simd_sources(TARGET): every based/kernels/*/cpu/*.simd.cpp is compiled once per instruction set, in namespace cpu::<isa>;
# common/cpu/isa.h selects one at run time. The list must match enum Isa.
# The sources of a set are compiled together, except those that define names that others define too.
function(based_simd_sources target)
  file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/based/kernels/*/cpu/*.simd.cpp")
  foreach(source IN LISTS sources)
    if(source MATCHES "/(scan|taylor)/cpu/|/quantised_linear")
      set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  set(isas portable)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND isas avx2)
    if(BASED_FEW_ISAS)
      target_compile_definitions(based_flags INTERFACE BASED_FEW_ISAS)
    else()
      list(APPEND isas avx512 avx512bf16)
    endif()
  endif()
  set(flags_portable "")
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 ${flags_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mprefer-vector-width=512)
  set(flags_avx512bf16 ${flags_avx512} -mavx512bf16)
  foreach(isa IN LISTS isas)
    if(sources)
      add_library(${target}_${isa} OBJECT ${sources})
      target_link_libraries(${target}_${isa} PRIVATE based_flags based_openmp)
      target_compile_options(${target}_${isa} PRIVATE ${flags_${isa}} -ffp-contract=fast)
      target_compile_definitions(${target}_${isa} PRIVATE BASED_ISA=${isa})
      based_unity(${target}_${isa})
      based_link_objects(${target} ${target}_${isa})
    endif()
  endforeach()
endfunction()
