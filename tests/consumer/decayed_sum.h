#pragma once
#include "based/mixers/mixer.h"

const based::MixerInfo& mixer_info_decayed_sum();
