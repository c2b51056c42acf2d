// The Python files of a folder for transformers. CMake copies their text from python/based_cpp/hf_folder into the library.
#pragma once
#include <string_view>

namespace based {

std::string_view huggingface_configuration_file();  // configuration_based.py
std::string_view huggingface_modeling_file();       // modeling_based.py

}  // namespace based
