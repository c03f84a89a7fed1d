"""Bytes that a program moves, by hand and by its text. The texts are cut from what libtpu 0.0.42.1 says."""

import pytest

from tpufeed.measure.hlo import count_hbm_bytes

FUSED = """HloModule of_a_test, is_scheduled=true

%fused_slice (param_0: u8[4,256,3]) -> u8[4,256,1] {
  %param_0 = u8[4,256,3]{1,0,2:T(8,128)} parameter(0)
  %bitcast.1 = u8[4,256,3]{1,0,2:T(8,128)} bitcast(%param_0)
  ROOT %slice.1 = u8[4,256,1]{1,0,2:T(8,128)} slice(%bitcast.1), slice={[0:4], [0:256], [1:2]}
}

%fused_outer (param_1: f32[], param_2: u8[4,256,3]) -> f32[4,256,1] {
  %param_2 = u8[4,256,3]{1,0,2:T(8,128)} parameter(1)
  %param_1 = f32[]{:T(128)} parameter(0)
  %fusion.9 = u8[4,256,1]{1,0,2:T(8,128)} fusion(%param_2), kind=kLoop, calls=%fused_slice
  ROOT %convert.1 = f32[4,256,1]{1,0,2:T(8,128)} convert(%fusion.9)
}

%fused_update (param_3: bf16[16,256], param_4: bf16[1,256]) -> bf16[16,256] {
  %param_3 = bf16[16,256]{1,0:T(8,128)(2,1)} parameter(0)
  %param_4 = bf16[1,256]{1,0:T(8,128)(2,1)} parameter(1)
  %constant.1 = s32[]{:T(128)} constant(3)
  ROOT %update = bf16[16,256]{1,0:T(8,128)(2,1)} dynamic-update-slice(%param_3, %param_4, %constant.1, %constant.1)
}

%body (param_5: (f32[8,128], pred[])) -> (f32[8,128], pred[]) {
  %param_5 = (f32[8,128]{1,0:T(8,128)}, pred[]{:T(512)}) parameter(0)
  %get-tuple-element.1 = f32[8,128]{1,0:T(8,128)} get-tuple-element(%param_5), index=0
  %negate.1 = f32[8,128]{1,0:T(8,128)} negate(%get-tuple-element.1)
  ROOT %tuple.1 = (f32[8,128]{1,0:T(8,128)}, pred[]{:T(512)}) tuple(%negate.1, %get-tuple-element.1)
}

"""
ENTRY = """ENTRY %main (Arg_0: u8[4,256,3], Arg_1: f32[]) -> f32[4,256,1] {
  %Arg_0 = u8[4,256,3]{1,0,2:T(8,128)} parameter(0)
  %Arg_1 = f32[]{:T(128)} parameter(1)
"""
IN_VMEM = "u8[4,256,3]{1,0,2:T(8,128)S(1)}"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("%copy = u8[4,256,3]{1,0,2:T(8,128)} copy(%Arg_0)", 2 * 3072),
        (f"%copy = {IN_VMEM} copy(%Arg_0)", 3072),
        (
            f"%start = ({IN_VMEM}, u8[4,256,3]{{1,0,2:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%Arg_0)\n"
            f"  %done = {IN_VMEM} copy-done(%start)",
            3072,
        ),
        # A third of the argument is read, by a fusion in a fusion.
        ("%f = f32[4,256,1]{1,0,2:T(8,128)S(1)} fusion(%Arg_1, %Arg_0), kind=kOutput, calls=%fused_outer", 1024),
        # What is updated in place is neither read nor written.
        (
            "%old = bf16[16,256]{1,0:T(8,128)(2,1)} bitcast(%Arg_0)\n"
            "  %new = bf16[1,256]{1,0:T(8,128)(2,1)} bitcast(%Arg_0)\n"
            "  %f = bf16[16,256]{1,0:T(8,128)(2,1)} fusion(%old, %new), kind=kLoop, calls=%fused_update",
            512,
        ),
        (
            "%init = (f32[8,128]{1,0:T(8,128)}, pred[]{:T(512)}) tuple(%Arg_1, %Arg_1)\n"
            "  %while.1 = (f32[8,128]{1,0:T(8,128)}, pred[]{:T(512)}) while(%init), condition=%condition, body=%body, "
            'backend_config={"known_trip_count":{"n":"5"}}',
            5 * 2 * 4096,
        ),
    ],
)
def test_bytes_of_ops(lines: str, expected: int) -> None:
    text = f"{FUSED}{ENTRY}  {lines}\n}}\n"
    assert count_hbm_bytes(text) == expected


def test_a_text_that_is_something_else_has_no_bytes() -> None:
    assert count_hbm_bytes("") == count_hbm_bytes("HloModule nothing") == 0
