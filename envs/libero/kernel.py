"""Operational-space control of a seven-joint arm as one compiled function: robosuite's law, without its matrix inverses.

Equal to the stock controller up to rounding (a test holds both side by side). The linear systems are symmetric and
positive definite, so they are solved by Cholesky instead of pseudo-inverses.
"""

from __future__ import annotations

import numpy as np
from numba import njit

JOINTS = 7
NULLSPACE_KP = 10.0
NULLSPACE_KD = 2.0 * np.sqrt(NULLSPACE_KP)
SMALLEST_PIVOT = 1e-12  # keeps a singular pose finite; the stock pseudo-inverse would drop that direction


@njit(cache=True)
def _factor(a, n):
    """In place: the lower triangle of `a` becomes its Cholesky factor."""
    for i in range(n):
        for j in range(i + 1):
            total = a[i, j]
            for k in range(j):
                total -= a[i, k] * a[j, k]
            if i == j:
                a[i, i] = np.sqrt(max(total, SMALLEST_PIVOT))
            else:
                a[i, j] = total / a[j, j]


@njit(cache=True)
def _solve(factor, b, n):
    """In place: b becomes x of a x = b, for the factor of a."""
    for i in range(n):
        for k in range(i):
            b[i] -= factor[i, k] * b[k]
        b[i] /= factor[i, i]
    for i in range(n - 1, -1, -1):
        for k in range(i + 1, n):
            b[i] -= factor[k, i] * b[k]
        b[i] /= factor[i, i]


@njit(cache=True)
def _task_space(jacobian, mass):
    """J M^-1 J^T, [6, 6]; `mass` is overwritten."""
    _factor(mass, JOINTS)
    product = np.empty((6, 6))
    column = np.empty(JOINTS)
    for r in range(6):
        column[:] = jacobian[r]
        _solve(mass, column, JOINTS)
        for s in range(6):
            total = 0.0
            for j in range(JOINTS):
                total += jacobian[s, j] * column[j]
            product[s, r] = total
    return product


@njit(cache=True)
def _wanted(pos, mat, speed, goal_pos, goal_ori, kp, kd):
    """[6]: the accelerations that a spring and damper at the goal ask for. mat: [9], goal_ori: [3, 3]."""
    wanted = np.empty(6)
    turn = np.zeros(3)
    for c in range(3):
        for i in range(3):
            j, k = (i + 1) % 3, (i + 2) % 3
            turn[i] += 0.5 * (mat[3 * j + c] * goal_ori[k, c] - mat[3 * k + c] * goal_ori[j, c])
    for i in range(3):
        wanted[i] = (goal_pos[i] - pos[i]) * kp[i] - speed[i] * kd[i]
        wanted[3 + i] = turn[i] * kp[3 + i] - speed[3 + i] * kd[3 + i]
    return wanted


@njit(cache=True)
def torques(pos, mat, jacp, jacr, qpos, qvel, bias, mass, dofs, joints, goal_pos, goal_ori, rest, kp, kd):
    """[7] newton-metres, before clipping to the motors' limits.

    pos [3], mat [9]: the grip site; jacp, jacr [3, nv]: its Jacobians; mass [nv, nv]; bias [nv]: gravity and Coriolis;
    dofs, joints [7]: where the arm stands in qvel and in qpos; rest [7]: the posture that the null space prefers.
    """
    jacobian, arm = np.empty((6, JOINTS)), np.empty((JOINTS, JOINTS))
    pull, posture, speed = np.empty(JOINTS), np.empty(JOINTS), np.zeros(6)
    for j in range(JOINTS):
        d = dofs[j]
        for r in range(3):
            jacobian[r, j], jacobian[3 + r, j] = jacp[r, d], jacr[r, d]
        for r in range(6):
            speed[r] += jacobian[r, j] * qvel[d]
        pull[j] = NULLSPACE_KP * (rest[j] - qpos[joints[j]]) - NULLSPACE_KD * qvel[d]
        for i in range(JOINTS):
            arm[j, i] = mass[d, dofs[i]]
    for j in range(JOINTS):
        posture[j] = 0.0
        for i in range(JOINTS):
            posture[j] += arm[j, i] * pull[i]
    inertia = _task_space(jacobian, arm)
    wrench = _wanted(pos, mat, speed, goal_pos, goal_ori, kp, kd)
    # Position and rotation are decoupled: each has its own 3x3 inertia, while the null space needs the whole.
    moving, turning, whole = inertia[:3, :3].copy(), inertia[3:, 3:].copy(), inertia
    _factor(moving, 3)
    _factor(turning, 3)
    _factor(whole, 6)
    _solve(moving, wrench[:3], 3)
    _solve(turning, wrench[3:], 3)
    leak = np.zeros(6)
    for r in range(6):
        for j in range(JOINTS):
            leak[r] += jacobian[r, j] * pull[j]
    _solve(whole, leak, 6)
    result = np.empty(JOINTS)
    for j in range(JOINTS):
        result[j] = bias[dofs[j]] + posture[j]
        for r in range(6):
            result[j] += jacobian[r, j] * (wrench[r] - leak[r])
    return result
