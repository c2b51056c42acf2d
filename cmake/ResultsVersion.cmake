# Run while building: writes OUTPUT, the definition of based::results_version, from the files that LIST names below ROOT and LibTorch's
# version. A hash of the sources rather than numbers kept by hand: a forgotten number gives old figures for new code without a word, while a
# hash that changes for a comment costs a sweep's time and says so.
file(STRINGS "${LIST}" names)
set(text "LibTorch ${LIBTORCH}\n")
foreach(name IN LISTS names)
  file(SHA256 "${ROOT}/${name}" hash)
  string(APPEND text "${name} ${hash}\n")
endforeach()
string(SHA256 version "${text}")
string(SUBSTRING "${version}" 0 16 version)
file(WRITE "${OUTPUT}" "// Made by cmake/ResultsVersion.cmake.
#include \"based/experiments/results_version.h\"

const char* const based::results_version = \"${version}\";
")
