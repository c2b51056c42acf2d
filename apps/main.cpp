#include "apps/command.h"

int main(int argc, char** argv) { based::apps::run_program(argc, argv); }
